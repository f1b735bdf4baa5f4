"""The kernels of saved activations compile for a Hopper GPU, which needs no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

# Run without the interpreter, which is fixed when a kernel is decorated.
COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lamina.accelerate.sparsity.saved import kernels

floats, integers = ("fp16", "bf16", "fp32", "fp64"), ("i16", "i32", "i64")
numbers = {"i16": tl.bfloat16, "i32": tl.float32, "i64": tl.float64}
launches = [(kernels.bits_kernel, {"FLOAT": number}, {"x": kind}) for kind, number in numbers.items()]
launches += [(kernels.bits_kernel, {"FLOAT": None}, {"x": kind}) for kind in integers]
launches += [(kernels.pack_kernel, {}, {"x": kind, "values": kind}) for kind in integers]
launches += [(kernels.unpack_kernel, {"VALUES": True}, {"y": kind, "values": kind}) for kind in integers]
launches += [(kernels.unpack_kernel, {"VALUES": False}, {"y": kind, "values": "u8"}) for kind in floats]
for index, some in ((tl.int32, launches), (tl.int64, launches[::4])):
    for kernel, constants, types in some:
        constants = {**constants, "BLOCK": 1024, "INDEX": index}
        types = {"bits": "u8", "counts": "i64", "offsets": "i64", **types}
        signature = {name: "constexpr" if name in constants else f"*{types[name]}" if name in types else "i32"
                     for name in kernel.arg_names}
        constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in types}
        built = triton.compile(ASTSource(kernel, signature, constexprs, attributes), target=GPUTarget("cuda", 90, 32))
        ptx = built.asm["ptx"]
        assert "atom." not in ptx, kernel.__name__
        if constants.get("FLOAT") == tl.float64:
            assert ".f64" in ptx, "a double is compared as one"
"""


def test_kernels_compile_for_a_hopper_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
