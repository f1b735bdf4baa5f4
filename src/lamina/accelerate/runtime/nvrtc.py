"""CUDA C++ compiled at run time by NVRTC, for kernels that Triton cannot express.

NVRTC comes with every CUDA build of PyTorch, so no toolkit is needed. A source may include only headers from folders
that ``options`` name. Binaries are cached for each architecture, also on disk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from os import getpid
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from lamina.accelerate.runtime import driver as driver
from lamina.accelerate.runtime.launch_cache import STREAM, KernelLaunch, record_launch, recording
from lamina.accelerate.runtime.private_apis import raw_stream
from lamina.accelerate.runtime.target_info import supports_pdl
from lamina.errors import LaminaError, MissingError, UsageError

Size = tuple[int, ...]
"""One to three integers: along x, y and z."""

Arguments = Sequence[Tensor | int | float]
"""Arguments of a kernel."""

Macros = Mapping[str, int | str]
"""Preprocessor macros of a source and their values."""

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The dtypes of ``common.cuh``."""

MAX_BINARIES = 1024
"""Binaries that are kept in memory; the least recently used is evicted first."""

_MAX_THREADS = 1024
_MAX_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
_DEFAULT_SHARED = 48 * 1024  # bytes; more must be allowed once for each kernel


class Launchable(Protocol):
    """A compiled kernel, wherever it runs."""

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        """Run it; see `Kernel.launch`."""


class Kernel:
    """One ``extern "C" __global__`` function of a CUDA source.

    Args:
        source: CUDA C++.
        name: of the function.
        macros: by which the source is specialized.
        options: further options of NVRTC.
        pdl: programmatic dependent launch where the device has it. The kernel must call ``griddepcontrol_wait()`` of
            ``common.cuh`` before it reads what the preceding kernel wrote, and before it lets the next one start.
    """

    def __init__(
        self, source: str, name: str, *, macros: Macros | None = None, options: Sequence[str] = (), pdl: bool = False
    ) -> None:
        self.source, self.name, self.pdl = source, name, pdl
        self.options = (*definitions(macros or {}), *options)
        self._loaded: dict[int, ctypes.c_void_p] = {}  # by device, as the next
        self._allowed_shared: dict[int, int] = {}

    def launch(self, grid: Size, block: Size, args: Arguments, shared: int = 0) -> None:
        """Launch the kernel on its tensors' device, on PyTorch's current stream; asynchronous.

        Args:
            grid: blocks along x, y and z.
            block: threads of a block along x, y and z.
            args: a tensor is passed as its address, an ``int`` as ``int``, a ``float`` as ``double``. They are not
                checked against the function's parameters.
            shared: bytes of dynamic shared memory.

        Raises:
            UsageError: a size beyond every device's limits, a tensor that is not contiguous, or tensors that are not
                on one GPU.
            MissingError: there is no CUDA device, or no NVRTC.
            LaminaError: the source does not compile, with the compiler's log; or the driver refuses the launch.
        """
        device = check_launch(self.name, grid, block, args, shared)
        if not torch.cuda.is_available():
            raise MissingError(f"{self.name}: expected a CUDA device to run on, found none")
        if device is None or device.type != "cuda":
            raise UsageError(f"{self.name}: expected tensors on a CUDA device, got {device or 'none'}")
        with torch.cuda.device(device):
            index = torch.cuda.current_device()
            try:
                driver.enter_context(index)
                function = self._on(index)
                if shared >= _DEFAULT_SHARED and shared > self._allowed_shared.get(index, 0):  # never lowered
                    driver.allow_shared_memory(function, shared)
                    self._allowed_shared[index] = shared
                pdl = self.pdl and supports_pdl(device)
                queue = driver.launcher(function, _three(grid), _three(block), args, shared, pdl)
                queue(raw_stream(index), *[one.data_ptr() if isinstance(one, Tensor) else one for one in args])
            except RuntimeError as error:
                raise LaminaError(
                    f"{self.name}: the launch of {grid} blocks of {block} threads failed: {error}"
                ) from error
        if recording():
            types = tuple(map(driver.parameter_type, args))
            handle, blocks, threads = int(function.value or 0), _three(grid), _three(block)
            kernel = KernelLaunch(handle, blocks, threads, shared, pdl, types, tuple(args), 0)
            record_launch(queue, STREAM, *args, addresses=True, kernel=kernel)

    def _on(self, index: int) -> ctypes.c_void_p:
        if index not in self._loaded:
            major, minor = torch.cuda.get_device_capability(index)
            binary = compiled(self.source, f"sm_{major}{minor}", self.options)
            try:
                self._loaded[index] = driver.load(binary, self.name)
            except RuntimeError as error:
                raise LaminaError(
                    f'expected a function extern "C" __global__ {self.name} in the source, got: {error}'
                ) from error
        return self._loaded[index]


def with_common_header(*sources: Traversable) -> str:
    """The text of ``common.cuh`` followed by that of the sources, which use it."""
    header = files(__package__) / "common.cuh"
    return "\n".join(source.read_text(encoding="utf-8") for source in (header, *sources))


def definitions(macros: Macros) -> tuple[str, ...]:
    """Macros as compiler options."""
    return tuple(f"-D{name}={value}" for name, value in macros.items())


def check_launch(name: str, grid: Size, block: Size, args: Arguments, shared: int) -> torch.device | None:
    """Check a launch, also for errors that no device reports. Returns the device of its tensors.

    Raises:
        UsageError: naming the argument, what was expected and what was got.
    """
    for what, size in (("grid", grid), ("block", block)):
        if not 1 <= len(size) <= 3 or any(isinstance(one, bool) or one < 1 for one in size):
            raise UsageError(f"{name}: {what}: expected one to three sizes of at least 1, got {size}")
    if any(one > most for one, most in zip(grid, _MAX_BLOCKS, strict=False)):
        raise UsageError(f"{name}: grid: expected at most {_MAX_BLOCKS} blocks, got {grid}")
    x, y, z = _three(block)
    if x * y * z > _MAX_THREADS or z > 64:
        raise UsageError(f"{name}: block: expected at most {_MAX_THREADS} threads, 64 of them along z, got {block}")
    if shared < 0:
        raise UsageError(f"{name}: shared: expected a size in bytes, got {shared}")
    for index, one in enumerate(args):
        _check_argument(f"{name}: argument {index}", one)
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
            raise UsageError(f"{what}: expected materialized values, got a lazy conjugate; call resolve_conj()")
    elif isinstance(one, bool) or not isinstance(one, int | float):
        raise UsageError(f"{what}: expected a tensor, an int or a float, got {one!r}")
    elif isinstance(one, int) and not -(2**31) <= one < 2**31:
        raise UsageError(f"{what}: expected a value that fits an int, got {one}")


@lru_cache(MAX_BINARIES)
def compiled(source: str, architecture: str, options: tuple[str, ...] = ()) -> bytes:
    """The binary of a CUDA source for an architecture such as ``sm_90``. Needs no GPU.

    Binaries are cached on disk beside PyTorch's downloads (``torch.hub.get_dir()``), for the next process.

    Raises:
        MissingError: NVRTC is not installed.
        LaminaError: the source does not compile; with the compiler's log.
    """
    words = (str(torch.version.cuda), architecture, *options, source)
    path = Path(torch.hub.get_dir()).parent / "lamina" / f"{sha256(chr(0).join(words).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        return path.read_bytes()
    binary = _compile(source, architecture, options)
    with suppress(OSError):  # a binary that cannot be stored is compiled again
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{getpid()}")
        part.write_bytes(binary)
        part.replace(path)  # atomic
    return binary


def _compile(source: str, architecture: str, options: tuple[str, ...]) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        fixed = f"--gpu-architecture={architecture}", "--std=c++17", "--device-as-default-execution-space"
        words = [word.encode() for word in (*fixed, *options)]
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
    for name in (*names, *_in_packages()):
        try:
            return ctypes.CDLL(name)  # finds the one that torch has loaded
        except OSError:
            continue
    raise MissingError(
        f"expected NVRTC ({names[0]}) to compile a CUDA source, found none: it comes with torch for CUDA"
    )


def _in_packages() -> list[str]:
    """The libraries of ``nvidia-cuda-nvrtc``, which compile where PyTorch has no CUDA."""
    try:
        spec = find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        return []
    folders = spec.submodule_search_locations if spec else None
    return [str(path) for each in folders or () for path in Path(each).glob("lib/libnvrtc.so.*")]


def _three(size: Size) -> tuple[int, int, int]:
    x, y, z = (*size, 1, 1)[:3]
    return x, y, z
