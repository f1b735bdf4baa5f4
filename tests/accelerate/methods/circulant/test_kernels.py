"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

from pathlib import Path

from tests import compiling

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.methods.circulant import kernels
from lamina.accelerate.methods.circulant.materialized import kernels as materialized
from lamina.accelerate.methods.circulant.lstm import kernels as lstm
from lamina.accelerate.methods.circulant.spectral import kernels as transforms

window = dict(P=8, Q=4, TAPS=9, KW=3, SH=2, SW=1, PH=1, PW=1, DH=1, DW=2, POINTWISE=False)
tile = dict(BLOCK_M=64, BLOCK_N=16, BLOCK_K=32)
spectral_matmul = dict(**tile, TAP_WIDTH=8, OUTPUT_SCALE=0.5)
common = dict(ACC=tl.float32, PRECISION="tf32x3", W_PRECISION="ieee", UPCAST=False, INDEX=tl.int64, PDL=2)
common |= dict(SIGN_FLIPS=True, TERMS=1)
transform = dict(X_TILE_ROWS=4, X_TILE_BLOCKS=16, W_TILE_ROWS=16, W_TILE_BLOCKS=4, K=64, PAIR=True)
transform |= dict(BLOCK_K=64, BLOCK_N=64)
transform |= dict(X_FULL_ROWS=True, W_FULL_ROWS=False)
transform |= dict(X_BLOCKS=16, X_GROUPS=1, W_BLOCKS=6, W_GROUPS=1)
transform |= dict(X_PARTIALS=0, W_PARTIALS=0, X_TARGET_EXPONENT=11, W_TARGET_EXPONENT=8, SPLIT_K=False)
transform |= dict(X_DESCALE=0.0, W_DESCALE=0.0)
transform |= dict(SAMPLED=False, RETRY=False)
scaled = transform | dict(X_PARTIALS=512, W_PARTIALS=8, X_DESCALE=8.0, W_DESCALE=1.0, SPLIT_K=True)
sampled = dict(SAMPLED=True)
retry = dict(SAMPLED=True, RETRY=True, PAIR=False)
grads = dict(W_BLOCK_M=16, W_BLOCK_N=32, W_BLOCK_K=32, W_TAP_WIDTH=4)
flat = dict(TAP_WIDTH=0, OUTPUT_SCALE=1.0, W_BLOCK_M=8, W_BLOCK_N=32, W_BLOCK_K=32, W_TAP_WIDTH=4)
step = dict(TILE_ROWS=1, TILE_BLOCKS=16, Q=16, K=64, PADDED_K=64, BLOCK_K=64)
target = dict(TARGET_EXPONENT=12)
launches = [
    (transforms.dft_kernel, dict(**transform, TF32=True), "fp32"),
    (transforms.dft_kernel, dict(**scaled, TERMS=2, TF32=False), "fp16"),
    (transforms.dft_kernel, dict(**scaled | sampled, TERMS=2, TF32=False), "fp16"),
    (transforms.dft_kernel, dict(**scaled | retry, TERMS=1, TF32=False), "fp16"),
    (transforms.idft_kernel, dict(**transform, BIAS=True, RELU=True), "bf16"),
    (transforms.idft_kernel, dict(**scaled, TERMS=2, BIAS=False, RELU=False), "fp16"),
    (kernels.spectral_matmul_kernel, dict(**window, **spectral_matmul, BACKWARD_DATA=False), "fp16"),
    (kernels.spectral_matmul_backward_kernel, dict(**window, **spectral_matmul, **grads), "bf16"),
    (kernels.spectral_matmul_backward_kernel, dict(**window, **spectral_matmul, **grads, TERMS=2), "fp16"),
    (kernels.spectral_matmul_backward_kernel, dict(**window, **tile, **flat), "fp32"),
    (materialized.linear_kernel, dict(**tile, K=64, BACKWARD_DATA=True), "fp16"),
    (materialized.linear_backward_kernel, dict(**tile, K=48, PADDED_K=64, W_BLOCK_N=64, W_BLOCK_K=64), "bf16"),
    (materialized.diagonal_sums_kernel, dict(TAPS=1, K=64, BLOCK=32, BLOCK_T=64, CHANNELS_LAST=True), "fp32"),
    (materialized.split_dense_matrix_kernel, dict(TAPS=9, K=64, BLOCK=1024, TERMS=2, PARTIALS=32, **target), "fp32"),
    (lstm.step_kernel, dict(**step, TF32=False), "bf16"),
    (lstm.step_kernel, dict(**step, TF32=True), "fp32"),
    (lstm.step_backward_kernel, dict(**step, TF32=False), "bf16"),
    (lstm.step_backward_kernel, dict(**step, TF32=False), "fp32"),
]
pointers = {"x", "w", "a", "dy", "dx", "dw", "out", "y", "dense", "x_out", "w_out", "x_spectrum", "w_spectrum"}
pointers |= {"bias", "signs", "products", "inputs", "gates", "hidden", "spectra", "outer", "gradients"}
for kernel, constants, dtype in launches:
    constants = {name: value for name, value in (common | constants).items() if name in kernel.arg_names}
    scales = "partial_amax", "scale_inv", "x_scale_inv", "w_scale_inv", "x_other_scale_inv", "w_other_scale_inv"
    types = dict.fromkeys(scales, "*fp32")
    types |= {"overflow": "*i32", "cells": "*fp32", "carry": "*fp32"}
    types |= dict.fromkeys(("x_basis", "w_basis"), f"*{'fp16' if constants.get('X_PARTIALS') else 'fp32'}")
    types |= dict.fromkeys(pointers, f"*{dtype}") | {"basis": f"*{'fp16' if dtype == 'fp32' else 'fp32'}"}
    if constants.get("X_DESCALE"):  # weight gradients are float32
        types |= {"w_basis": "*fp32", "w_spectrum": "*fp32"}
    types |= {name: "i64" for name in kernel.arg_names if "per_" in name}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    built = triton.compile(ASTSource(kernel, signature, constexprs), target=GPUTarget("cuda", 90, 32))
    ptx = built.asm["ptx"]
    products = ptx.count("mma.sync") + ptx.count("wgmma.mma_async")
    for word in ("wait", "launch_dependents"):  # of programmatic dependent launch
        assert (f"griddepcontrol.{word}" in ptx) == ("PDL" in constants), (kernel.__name__, word)
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    assert (products > 0) == ("BLOCK_K" in constants), (kernel.__name__, products)
"""


def test_kernels_compile_to_tensor_core_instructions(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
