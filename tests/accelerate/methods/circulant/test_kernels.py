"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

import subprocess
import sys
from pathlib import Path

import pytest

# Run without the interpreter, which is fixed when a kernel is decorated.
COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.circulant import kernels
from lamina.accelerate.methods.circulant.materialized import kernels as expanded
from lamina.accelerate.methods.circulant.lstm import kernels as recurrent
from lamina.accelerate.methods.circulant.spectral import kernels as transforms

window = dict(P=8, Q=4, TAPS=9, KW=3, SH=2, SW=1, PH=1, PW=1, DH=1, DW=2, POINTWISE=False)
tile = dict(BM=64, BN=16, BK=32)
mix = dict(**tile, STEP=8, DOWN=0.5)
common = dict(ACC=tl.float32, PRECISION="tf32x3", W_PRECISION="ieee", UPCAST=False, INDEX=tl.int64, EARLY=2)
common |= dict(SIGNED=True, PARTS=1)
sides = dict(X_ROWS=4, X_AT_ONCE=16, W_ROWS=16, W_AT_ONCE=4, BK=64, BN=64, K=64, PAIR=True)
sides |= dict(X_WHOLE=True, W_WHOLE=False)
sides |= dict(X_BLOCKS=16, X_GROUPS=1, W_BLOCKS=6, W_GROUPS=1)
sides |= dict(X_SHARES=0, W_SHARES=0, X_TOP=11, W_TOP=8, SPLIT=False, X_UNDO=0.0, W_UNDO=0.0)
sides |= dict(GUESSED=False, AGAIN=False)
scaled = sides | dict(X_SHARES=512, W_SHARES=8, X_UNDO=8.0, W_UNDO=1.0, SPLIT=True)
guessed = dict(GUESSED=True)
again = dict(GUESSED=True, AGAIN=True, PAIR=False)
grads = dict(W_BM=16, W_BN=32, W_BK=32, W_STEP=4)
flat = dict(STEP=0, DOWN=1.0, W_BM=8, W_BN=32, W_BK=32, W_STEP=4)
step = dict(ROWS=1, AT_ONCE=16, Q=16, K=64, SIDE=64, BK=64)
launches = [
    (transforms.dft_kernel, dict(**sides, TF32=True), "fp32"),
    (transforms.dft_kernel, dict(**scaled, PARTS=2, TF32=False), "fp16"),
    (transforms.dft_kernel, dict(**scaled | guessed, PARTS=2, TF32=False), "fp16"),
    (transforms.dft_kernel, dict(**scaled | again, PARTS=1, TF32=False), "fp16"),
    (transforms.idft_kernel, dict(**sides, BIAS=True), "bf16"),
    (transforms.idft_kernel, dict(**scaled, PARTS=2, BIAS=False), "fp16"),
    (kernels.mix_kernel, dict(**window, **mix, BACK=False), "fp16"),
    (kernels.mix_grads_kernel, dict(**window, **mix, **grads), "bf16"),
    (kernels.mix_grads_kernel, dict(**window, **mix, **grads, PARTS=2), "fp16"),
    (kernels.mix_grads_kernel, dict(**window, **tile, **flat), "fp32"),
    (expanded.expand_kernel, dict(**tile, K=64, BACK=True), "fp16"),
    (expanded.expand_grads_kernel, dict(**tile, K=48, SIDE=64, W_BN=64, W_BK=64), "bf16"),
    (expanded.diagonal_sums_kernel, dict(TAPS=1, K=64, BLOCK=32, AT_ONCE=64, LAST=True), "fp32"),
    (expanded.materialise_halves_kernel, dict(TAPS=9, K=64, BLOCK=1024, PARTS=2, SHARES=32, TOP=12), "fp32"),
    (recurrent.step_kernel, dict(**step, TF32=False), "bf16"),
    (recurrent.step_kernel, dict(**step, TF32=True), "fp32"),
    (recurrent.step_gradient_kernel, dict(**step, TF32=False), "bf16"),
    (recurrent.step_gradient_kernel, dict(**step, TF32=False), "fp32"),
]
pointers = {"x", "w", "a", "dy", "dx", "dw", "out", "y", "dense", "x_out", "w_out", "x_spectrum", "w_spectrum"}
pointers |= {"bias", "signs", "products", "inputs", "gates", "hidden", "spectra", "outer", "gradients"}
for kernel, constants, kind in launches:
    constants = {name: value for name, value in (common | constants).items() if name in kernel.arg_names}
    types = dict.fromkeys(("peaks", "down", "x_down", "w_down", "x_other", "w_other"), "*fp32")
    types |= {"misled": "*i32", "cells": "*fp32", "carry": "*fp32"}
    types |= dict.fromkeys(("x_basis", "w_basis"), f"*{'fp16' if constants.get('X_SHARES') else 'fp32'}")
    types |= dict.fromkeys(pointers, f"*{kind}") | {"basis": f"*{'fp16' if kind == 'fp32' else 'fp32'}"}
    if constants.get("X_UNDO"):  # weight gradients are wide
        types |= {"w_basis": "*fp32", "w_spectrum": "*fp32"}
    types |= {name: "i64" for name in kernel.arg_names if "per_" in name}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    built = triton.compile(ASTSource(kernel, signature, constexprs), target=GPUTarget("cuda", 90, 32))
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    for word in ("wait", "launch_dependents"):  # a kernel that is launched early has to
        assert (f"griddepcontrol.{word}" in ptx) == ("EARLY" in constants), (kernel.__name__, word)
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    assert (products > 0) == ("BK" in constants), (kernel.__name__, products)
"""


def test_kernels_compile_to_tensor_core_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
