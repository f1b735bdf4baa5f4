"""CUDA C++ compiled while the program runs, for kernels that a tile language cannot say.

NVRTC, which comes with every CUDA build of torch, compiles, and the binary is kept for each chip, on disk too. No
toolkit is needed, so a source includes no headers but those that ``options`` name a folder for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import getpid
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lamina.accelerate.runtime import driver as driver
from lamina.accelerate.runtime.launch_cache import STREAM, launched
from lamina.accelerate.runtime.target_info import can_wait
from lamina.errors import LaminaError, MissingError, UsageError

Size = tuple[int, ...]
"""One to three numbers: along x, y and z."""

Arguments = Sequence[Tensor | int | float]
"""What a kernel is given."""

Macros = Mapping[str, int | str]
"""What a source is compiled with: names and what they stand for."""

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""What ``common.cuh`` calls the types of numbers."""

_MOST_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
_UNASKED_SHARED = 48 * 1024  # bytes that every kernel may use; beyond that it must ask once


class Launchable(Protocol):
    """A compiled kernel, wherever it runs."""

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        """Run it; see `Kernel.launch`."""


class Kernel:
    """One ``extern "C" __global__`` function of a CUDA source.

    Args:
        source: CUDA C++.
        name: of the function.
        macros: defined while compiling, which is how a source is specialised.
        options: further options of NVRTC.
        waits: whether it begins with ``wait()`` of ``common.cuh``, so that it may be launched while what is in front of
            it ends, where the device can.
    """

    def __init__(
        self, source: str, name: str, *, macros: Macros | None = None, options: Sequence[str] = (), waits: bool = False
    ) -> None:
        self.source, self.name, self.waits = source, name, waits
        self.options = (*definitions(macros or {}), *options)
        self._loaded: dict[int, Any] = {}
        self._asked: dict[int, int] = {}

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        """Run the kernel on its tensors' device, on torch's current stream; nothing waits for it.

        Args:
            grid: blocks along x, y and z.
            block: threads of a block along x, y and z.
            args: what the function takes. A tensor is passed as its first address, a whole number as an ``int``,
                another as a ``double``. Nothing can compare them with the function's parameters.
            shared: bytes of dynamic shared memory.

        Raises:
            UsageError: a size that no device takes, a tensor with gaps, or tensors that are not on one GPU.
            MissingError: there is no CUDA device, or no NVRTC.
            LaminaError: the source does not compile, with the compiler's words; or the driver refuses the launch.
        """
        device = check_launch(self.name, grid, block, args, shared)
        if not torch.cuda.is_available():
            raise MissingError(f"{self.name}: expected a CUDA device to run on, found none")
        if device is None or device.type != "cuda":
            raise UsageError(f"{self.name}: expected tensors on a CUDA device, got {device or 'none'}")
        with torch.cuda.device(device):
            index = torch.cuda.current_device()
            kernel = self._on(index)
            try:
                if shared >= _UNASKED_SHARED and shared > self._asked.get(index, 0):  # never for less than before
                    kernel.set_shared_memory_config(shared)
                    self._asked[index] = shared
                early = self.waits and can_wait(device)
                queue = driver.launcher(kernel.func, _three(grid), _three(block), args, shared, early)
                stream = torch._C._cuda_getCurrentRawStream(index)
                queue(stream, *[one.data_ptr() if isinstance(one, Tensor) else one for one in args])
            except RuntimeError as error:
                raise LaminaError(
                    f"{self.name}: the launch of {grid} blocks of {block} threads failed: {error}"
                ) from error
        launched(queue, STREAM, *args, addresses=True)

    def _on(self, index: int) -> Any:
        if index not in self._loaded:
            # Private, but the public way to run-time kernels insists on an installed toolkit.
            from torch.cuda._utils import _cuda_load_module

            major, minor = torch.cuda.get_device_capability(index)
            binary = compiled(self.source, f"sm_{major}{minor}", self.options)
            try:
                loaded: Any = _cuda_load_module(binary, [self.name])
            except RuntimeError as error:
                raise LaminaError(
                    f'expected a function extern "C" __global__ {self.name} in the source, got: {error}'
                ) from error
            self._loaded[index] = loaded[self.name]
        return self._loaded[index]


def goes_on(*sources: Traversable) -> str:
    """The text of ``common.cuh``, and behind it that of sources which use its numbers and copies."""
    numbers = files(__package__) / "common.cuh"
    return "\n".join(source.read_text(encoding="utf-8") for source in (numbers, *sources))


def definitions(macros: Macros) -> tuple[str, ...]:
    """Macros as options of a compiler."""
    return tuple(f"-D{name}={value}" for name, value in macros.items())


def check_launch(name: str, grid: Size, block: Size, args: Arguments, shared: int) -> torch.device | None:
    """Refuse a launch that a device would refuse, or worse, would not; the device of its tensors.

    Raises:
        UsageError: naming the argument, what was expected and what was got.
    """
    for what, size in (("grid", grid), ("block", block)):
        if not 1 <= len(size) <= 3 or any(isinstance(one, bool) or one < 1 for one in size):
            raise UsageError(f"{name}: {what}: expected one to three sizes of at least 1, got {size}")
    if any(one > most for one, most in zip(grid, _MOST_BLOCKS, strict=False)):
        raise UsageError(f"{name}: grid: expected at most {_MOST_BLOCKS} blocks, got {grid}")
    x, y, z = _three(block)
    if x * y * z > _MOST_THREADS or z > 64:
        raise UsageError(f"{name}: block: expected at most {_MOST_THREADS} threads, 64 of them along z, got {block}")
    if shared < 0:
        raise UsageError(f"{name}: shared: expected a number of bytes, got {shared}")
    for place, one in enumerate(args):
        _check_argument(f"{name}: argument {place}", one)
    devices = {one.device for one in args if isinstance(one, Tensor)}
    if len(devices) > 1:
        raise UsageError(f"{name}: expected tensors on one device, got {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else None


def _check_argument(what: str, one: Tensor | int | float) -> None:
    if isinstance(one, Tensor):
        if not one.is_contiguous():
            raise UsageError(
                f"{what}: expected a contiguous tensor, got shape {tuple(one.shape)} with strides {one.stride()}; "
                "call contiguous()"
            )
        if one.is_conj() or one.is_neg():
            raise UsageError(f"{what}: expected numbers as they are, got a lazy conjugate; call resolve_conj()")
    elif isinstance(one, bool) or not isinstance(one, int | float):
        raise UsageError(f"{what}: expected a tensor, an int or a float, got {one!r}")
    elif isinstance(one, int) and not -(2**31) <= one < 2**31:
        raise UsageError(f"{what}: expected a number that fits an int, got {one}")


@cache
def compiled(source: str, architecture: str, options: tuple[str, ...] = ()) -> bytes:
    """The binary of a CUDA source for a chip such as ``sm_90``. No GPU is needed for this.

    Binaries are kept beside torch's own downloads (``torch.hub.get_dir()``), for the next process.

    Raises:
        MissingError: NVRTC is not installed.
        LaminaError: the source does not compile; with the compiler's words.
    """
    words = (str(torch.version.cuda), architecture, *options, source)
    place = Path(torch.hub.get_dir()).parent / "lamina" / f"{sha256(chr(0).join(words).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        return place.read_bytes()
    binary = _compile(source, architecture, options)
    with suppress(OSError):  # what cannot be kept is made again
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{getpid()}")
        part.write_bytes(binary)
        part.replace(place)  # whole, or not at all
    return binary


def _compile(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        words = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", *(word.encode() for word in options)]
        code = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        if code:
            log = _text(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise LaminaError(f"the CUDA source does not compile for {architecture}:\n{log}")
        return _text(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise LaminaError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(code).decode()}")


@cache
def _nvrtc() -> ctypes.CDLL:
    names = ["libnvrtc.so"]
    if torch.version.cuda:
        names.insert(0, f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
    for name in names:
        try:
            return ctypes.CDLL(name)  # torch has loaded its own by now, which this finds first
        except OSError:
            continue
    raise MissingError(
        f"expected NVRTC ({names[0]}) to compile a CUDA source, found none: it comes with torch for CUDA"
    )


def _three(size: Size) -> tuple[int, int, int]:
    x, y, z = (*size, 1, 1)[:3]
    return x, y, z
