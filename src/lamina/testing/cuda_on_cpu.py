"""Runs CUDA C++ on the CPU, to test the results of a kernel without a GPU.

The same source is compiled as C++20 and every CUDA thread becomes a fiber, so use small blocks.
It checks indices, sums and barriers, but not speed, warps or device-only features. It is stricter than a device in two
ways: arguments are compared with the function's parameters, and dynamic shared memory starts as NaN in every block.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from lamina.accelerate.runtime.launch_cache import record_launch
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Macros, Size, check_launch, definitions
from lamina.errors import LaminaError, MissingError, UsageError

_DYNAMIC = re.compile(r"extern\s+__shared__\s+([\w:]+)\s+(\w+)\s*\[\s*\]\s*;")
_MAX_PARAMETERS = 64
FLAGS = ("-std=c++20", "-O0", "-ffp-contract=off", "-fno-gnu-unique", "-fPIC", "-pthread")
"""Not optimized: small blocks run for less time than an optimization takes. No FMA contraction: a product and a sum are
rounded separately, as written. Symbols are private to each library, since two may be the same source with other
macros."""
_ENTRY = """
extern "C" int {name}_parameters(char* kinds, int* bytes, int room) {{
  return cuda_on_cpu::describe({name}, kinds, bytes, room);
}}
extern "C" void {name}_launch(const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {{
  cuda_on_cpu::launch([](void** a) {{ cuda_on_cpu::call({name}, a); }}, grid, block, shared, arguments);
}}
"""


class KernelOnCpu:
    """One ``extern "C" __global__`` function of a CUDA source, like `nvrtc.Kernel` but on the CPU.

    Args:
        source: CUDA C++, limited to the subset that ``cuda_on_cpu.h`` supports.
        name: name of the function.
        macros: macros defined for compilation.
        pdl: ignored: a launch ends before the next one begins.
    """

    def __init__(self, source: str, name: str, *, macros: Macros | None = None, pdl: bool = False) -> None:
        self.source, self.name = source, name
        self.options = definitions(macros or {})

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        """Run the kernel synchronously on CPU tensors; for arguments see `Kernel.launch`.

        Raises:
            UsageError: an invalid size, a non-contiguous tensor or one on another device, or an argument that does
                not match the function's parameter.
            MissingError: there is no C++ compiler.
            LaminaError: the source does not compile, with the compiler's output.
        """
        device = check_launch(self.name, grid, block, args, shared)
        if device is not None and device.type != "cpu":
            raise UsageError(f"{self.name}: expected tensors on the CPU, got {device}")
        library = compiled(self.source, self.options)
        values = [
            _value(f"{self.name}: argument {index}", one, *parameter)
            for index, (one, parameter) in enumerate(zip(args, self._parameters(library, len(args)), strict=True))
        ]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = ((ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in (grid, block))
        getattr(library, f"{self.name}_launch")(*sizes, ctypes.c_uint(shared), addresses)
        record_launch(lambda *args: self.launch(grid, block, args, shared), *args, addresses=False)

    def _parameters(self, library: ctypes.CDLL, got: int) -> list[tuple[str, int]]:
        if not hasattr(library, f"{self.name}_parameters"):
            raise LaminaError(f'expected a function extern "C" __global__ {self.name} in the source, found none')
        kinds, sizes = ctypes.create_string_buffer(_MAX_PARAMETERS), (ctypes.c_int * _MAX_PARAMETERS)()
        count = getattr(library, f"{self.name}_parameters")(kinds, sizes, _MAX_PARAMETERS)
        if count != got:
            raise UsageError(f"{self.name}: expected {count} arguments, got {got}")
        return list(zip(kinds.raw[:count].decode(), sizes[:count], strict=True))


def _value(what: str, one: Tensor | int | float, kind: str, size: int) -> ctypes._SimpleCData[object]:
    """An argument as a value of the parameter's type, which ``kind`` and ``size`` describe."""
    if isinstance(one, Tensor):
        if kind != "p" or size != one.element_size():
            raise UsageError(f"{what}: the function expects {_described(kind, size)}, got a tensor of {one.dtype}")
        return ctypes.c_void_p(one.data_ptr())  # type: ignore[return-value]
    expected = ("i", 4) if isinstance(one, int) else ("f", 8)
    if (kind, size) != expected:
        raise UsageError(f"{what}: the function expects {_described(kind, size)}, got {_described(*expected)}")
    return ctypes.c_int(one) if isinstance(one, int) else ctypes.c_double(one)  # type: ignore[return-value]


def _described(kind: str, size: int) -> str:
    names = {"p": "the address of elements", "i": "an integer", "f": "a floating-point number"}
    return f"{names[kind]} of {size} bytes"


@cache
def compiled(source: str, options: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The compiled library of a CUDA source, with a launch entry for each of its functions.

    Raises:
        MissingError: there is no g++.
        LaminaError: the source does not compile; with the compiler's output.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise MissingError("expected g++ with C++20 to run CUDA sources on the CPU, found none: install it")
    names = re.findall(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)', source)
    body = _DYNAMIC.sub(r"\1* \2 = cuda_on_cpu::dynamic_shared<\1>();", source)
    # Macros follow the header, since a precompiled header is only read where none is defined before it.
    macros = "".join("#define {} {}\n".format(*option.removeprefix("-D").split("=", 1)) for option in options)
    text = '#include "cuda_on_cpu.h"\n' + macros + body + "".join(_ENTRY.format(name=name) for name in names)
    with TemporaryDirectory(prefix="lamina-cuda-") as folder:
        (Path(folder) / "kernel.cpp").write_text(text, encoding="utf-8")
        runtime = _runtime(compiler).name
        words = [*FLAGS, "-shared", "-I", runtime]
        done = subprocess.run(
            [compiler, *words, "-o", "kernel.so", "kernel.cpp", f"{runtime}/cuda_on_cpu.o"],
            cwd=folder, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode:
            raise LaminaError(f"the CUDA source does not compile on the CPU:\n{done.stderr}")
        return ctypes.CDLL(str(Path(folder) / "kernel.so"))


@cache
def _runtime(compiler: str) -> TemporaryDirectory[str]:
    """A folder with what all kernels use: the header, precompiled where the compiler can, and the compiled launch."""
    folder = TemporaryDirectory(prefix="lamina-cuda-runtime-")
    for name in ("cuda_on_cpu.h", "cuda_on_cpu.cpp"):
        (Path(folder.name) / name).write_text((files("lamina.testing") / name).read_text(encoding="utf-8"), "utf-8")
    compile = partial(subprocess.run, cwd=folder.name, capture_output=True, text=True, errors="replace", check=False)
    compile([compiler, *FLAGS, "-x", "c++-header", "-o", "cuda_on_cpu.h.gch", "cuda_on_cpu.h"])
    done = compile([compiler, *FLAGS, "-c", "-o", "cuda_on_cpu.o", "cuda_on_cpu.cpp"])
    if done.returncode:
        raise LaminaError(f"cuda_on_cpu.cpp does not compile:\n{done.stderr}")
    return folder


def kernel_class(device: torch.device) -> type[Kernel] | type[KernelOnCpu]:
    """The class of kernels that run on a device: compiled for the GPU, or as C++ on the CPU."""
    return Kernel if device.type == "cuda" else KernelOnCpu
