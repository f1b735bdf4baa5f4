"""The counting kernels compile for a Hopper GPU, and read neighbours in memory with neighbouring threads."""

from pathlib import Path

from tests import compiling

COMPILE = """
import re
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.training.sparsity_monitor import kernels

def build(kernel, types, **constants):
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(n),): value for n, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, constexprs), target=GPUTarget("cuda", 90, 32)).asm

types = {"table": "*i64", "scratch": "*i16"}
for dtype in (tl.float64, tl.bfloat16):
    build(kernels.count_kernel, types, DTYPE=dtype, RELU=True, CHANNELS_LAST=False, MAPS=4, INDEX=tl.int64)
for last in (False, True):
    options = dict(DTYPE=tl.float32, RELU=False, CHANNELS_LAST=last, MAPS=4, INDEX=tl.int32)
    asm = build(kernels.count_kernel, types, **options)["ttgir"]
    layout = re.search(r"tt.load .*tensor<128x32x!tt.ptr<f32>, (#\\w+)>", asm)[1]
    threads = re.search(layout + r" = .*threadsPerWarp = \\[(\\d+), (\\d+)\\]", asm)
    assert threads.groups() == (("1", "32") if last else ("32", "1")), (last, threads[0])
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
