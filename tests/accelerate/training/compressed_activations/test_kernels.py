"""The kernels of context activations compile for a Hopper GPU, which needs no GPU."""

from pathlib import Path

from tests import compiling

COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.training.compressed_activations import kernels
from lamina.accelerate.training.compressed_activations.bitmap import BLOCK

floats, integers = ("fp16", "bf16", "fp32", "fp64"), ("i16", "i32", "i64")
launches = [(kernels.relu_kernel, {}, {"x": kind, "y": kind}) for kind in floats]
launches += [(kernels.masked_kernel, {}, {"x": kind, "y": kind}) for kind in floats]
launches += [(kernels.pack_kernel, {"BITS": bits}, {"x": kind, "values": kind})
             for kind in integers for bits in (False, True)]
launches += [(kernels.unpack_kernel, {}, {"y": kind, "values": kind}) for kind in integers]
window = {"KH": 3, "KW": 3, "SH": 2, "SW": 2, "PH": 1, "PW": 1}
launches += [(kernels.max_pool_kernel, window, {"x": kind, "y": kind}) for kind in floats]
launches += [(kernels.max_pool_backward_kernel, {**window, "UPCAST": False}, {"gradient": kind, "y": kind})
             for kind in floats]
for index, some in ((tl.int32, launches), (tl.int64, launches[::4])):
    for kernel, constants, types in some:
        constants = {**constants, "BLOCK": BLOCK, "INDEX": index}
        types = {"bits": "u8", "indices": "u8", "offsets": "i64", "counter": "i64", "reported": "i64", **types}
        whole = {name: "i64" if name.endswith("_divisor") else "i32" for name in kernel.arg_names}
        signature = {name: "constexpr" if name in constants else f"*{types[name]}" if name in types else whole[name]
                     for name in kernel.arg_names}
        constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names)
                      if name in types or name == "size"}
        built = triton.compile(ASTSource(kernel, signature, constexprs, attributes), target=GPUTarget("cuda", 90, 32),
                               options={"num_warps": 8})
        ptx = built.asm["ptx"]
        assert ptx.count("atom.") == (kernel is kernels.pack_kernel), kernel.__name__
        if types.get("x") == "fp64" and kernel is kernels.relu_kernel:
            assert ".f64" in ptx, "a double is compared as one"
        if types.get("x") == "fp32" and kernel is not kernels.max_pool_kernel:
            assert "v4" in ptx, "16 bytes of a thread at a time"
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    done = compiling.run(COMPILE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
