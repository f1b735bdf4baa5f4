"""Compiled for a Hopper GPU, the variants differ in the cache operator of their loads and in nothing else."""

from pathlib import Path

import pytest
from tests import compiling

COMPILE = r"""
import re
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.papers.l1_bypass import kernels, ops

for kernel in (kernels.forward_kernel, kernels.weight_gradient_kernel):
    found = {}
    for cache in (".ca", ".cg"):
        constants = dict(**ops.TILE, CACHE=cache, INDEX=tl.int32)
        pointers = dict.fromkeys(("x", "weight", "y", "gy", "partials"), "*fp32")
        signature = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in kernel.arg_names}
        constexprs = {(kernel.arg_names.index(n),): value for n, value in constants.items()}
        even = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(kernel.arg_names) if n in pointers}
        source = ASTSource(kernel, signature, constexprs, even)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=ops.OPTIONS)
        ptx = built.asm["ptx"]
        assert "cp.async" not in ptx and "mma" not in ptx, kernel.__name__  # plain loads, and no tensor cores
        assert ptx.count(f"ld.global{cache}") > 0, (kernel.__name__, cache)
        found[cache] = re.sub(r"ld\.global\.c[ag]", "ld.global", ptx)
    assert found[".ca"] == found[".cg"], kernel.__name__
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_costs_are_those_of_a_small_convolution_by_hand() -> None:
    kernels = pytest.importorskip("lamina.accelerate.papers.l1_bypass.kernels")
    # 1 image of 2 x 4 x 4, 3 filters of 2 x 3 x 3 without padding: 4 pixels, 18 weights of a filter.
    cost = kernels.convolution_cost(rows=4, columns=18, filters=3, inputs=32)
    assert cost.flops == 2 * 4 * 18 * 3
    assert (cost.bytes_read, cost.bytes_written) == (4 * (32 + 54), 4 * 12)
