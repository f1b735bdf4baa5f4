"""Kernels compile for a Hopper GPU, which needs no GPU; what they compute is tested through the operators."""

from pathlib import Path

from tests import compiling

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.common.split_fp16 import kernels

window = dict(GROUPS=1, TAPS=9, KW=3, SH=1, SW=1, PH=1, PW=1, DH=1, DW=1)
common = dict(TARGET_EXPONENT=12, UPCAST=False, INDEX=tl.int32)
tile = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64)
conv = dict(**window, IN_CHANNELS=128, OUT_CHANNELS=128, TERMS=2, A_PARTIALS=512, W_PARTIALS=32, BIAS=True)
conv |= tile
gradient = dict(**window, OUTPUTS=128, INPUTS=128, TERMS=2, DY_PARTIALS=512, A_PARTIALS=512, **tile)
launches = [
    (kernels.amax_kernel, dict(BLOCK=4096), 0, "fp32"),
    (kernels.split_fp16_kernel, dict(TERMS=2, PARTIALS=512, BLOCK_L=64, BLOCK_C=64), 0, "fp16"),
    (kernels.conv_kernel, dict(**conv, BACKWARD_DATA=False, CHANNELS_LAST=True, stride_c=1), 12, "fp16"),
    (kernels.conv_kernel, dict(**conv, BACKWARD_DATA=True, CHANNELS_LAST=False, stride_l=1), 12, "fp16"),
    (kernels.conv_backward_weight_kernel, gradient, 12, "fp16"),
    (kernels.conv_backward_weight_kernel, gradient | dict(TERMS=1, DY_PARTIALS=0, A_PARTIALS=0), 4, "bf16"),
]
for kernel, constants, products, dtype in launches:
    constants = {name: value for name, value in (constants | common).items() if name in kernel.arg_names}
    types = dict.fromkeys(("a", "dy", "w"), "*" + dtype) | dict.fromkeys(("per_height", "per_width"), "i64")
    types |= dict.fromkeys(("x", "partial_amax", "a_amax", "dy_amax", "w_amax", "bias"), "*fp32")
    types |= {"out": "*fp16" if kernel is kernels.split_fp16_kernel else "*fp32"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    names = dict(enumerate(kernel.arg_names))
    constexprs = {(at,): constants[name] for at, name in names.items() if name in constants}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in names.items() if name not in ("tiles_l", "tiles_c")}
    aligned = {at: hint for at, hint in aligned.items() if at not in constexprs}
    source = ASTSource(kernel, signature, constexprs, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
    ptx = built.asm["ptx"]
    assert built.metadata.shared <= 227 * 1024, (kernel.__name__, built.metadata.shared)
    assert (ptx.count("wgmma.mma_async"), ptx.count("mma.sync")) == (products, 0), (kernel.__name__, products)
    assert ".local" not in ptx, kernel.__name__
    assert not products or "cp.async" in ptx, kernel.__name__
"""


def test_kernels_compile_to_warp_group_mma_on_shared_memory(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
