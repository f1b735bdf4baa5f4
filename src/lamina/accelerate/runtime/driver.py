"""The CUDA driver, by ctypes: loads compiled functions and launches them, with programmatic dependent launch.

PyTorch's own launcher of run-time kernels is private, and has no launch attributes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from lamina.errors import MissingError

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)


def enter_context(index: int) -> None:
    """Make the device's primary context current in this thread, if it has none.

    CUDA's runtime does so in the first call that needs one. A thread of autograd whose first work is a kernel of ours
    has made no such call.

    Args:
        index: of the device.

    Raises:
        RuntimeError: the driver has no context for the device.
    """
    driver, context, device = _driver(), ctypes.c_void_p(), ctypes.c_int()
    if not _current_context(driver):
        _check(driver, driver.cuDeviceGet(ctypes.byref(device), index))
        _check(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        _check(driver, driver.cuCtxSetCurrent(context))


def load(binary: bytes, name: str) -> ctypes.c_void_p:
    """Load a function of a binary in the current CUDA context.

    Raises:
        RuntimeError: the driver refuses the binary, or it has no such function.
    """
    driver = _driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver, driver.cuModuleLoadData(ctypes.byref(module), binary))
    _check(driver, driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return function


def allow_shared_memory(function: ctypes.c_void_p, size: int) -> None:
    """Let a function use this many bytes of dynamic shared memory; 48 KiB are allowed without.

    Raises:
        RuntimeError: the device has not as much.
    """
    driver = _driver()
    _check(driver, driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, size))


def launcher(
    function: ctypes.c_void_p, grid: tuple[int, int, int], block: tuple[int, int, int],
    args: Sequence[Tensor | int | float], shared: int, pdl: bool,
) -> Callable[..., None]:  # fmt: skip
    """A function that launches a loaded kernel: takes a stream and arguments like ``args``, with addresses for tensors.

    A thread without a context gets that of the thread that made the function.

    Args:
        function: as `load` returns it.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        args: a tensor is passed as its address, an ``int`` as ``int``, a ``float`` as ``double``.
        shared: bytes of dynamic shared memory.
        pdl: programmatic dependent launch: blocks may start once those of the kernel in front have ended, before its
            writes are visible.
    """
    types, driver = [*map(_type, args)], _driver()
    context = _current_context(driver)

    def queue(stream: int, *args: int | float) -> None:
        if not _current_context(driver):
            _check(driver, driver.cuCtxSetCurrent(context))
        values = [type_(one) for type_, one in zip(types, args, strict=True)]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = _Config(grid, block, shared, stream, ctypes.pointer(_attribute), int(pdl))
        _check(driver, driver.cuLaunchKernelEx(ctypes.byref(config), function, addresses, None))

    return queue


def parameter_type(one: Tensor | int | float) -> str:
    """The type as which `launcher` passes an argument, in Triton's notation."""
    if isinstance(one, Tensor):
        return "*"
    return "i32" if isinstance(one, int) else "fp64"


def parameter_sizes(function: int) -> list[int]:
    """Sizes in bytes of a loaded function's parameters; empty with drivers that do not tell (before CUDA 12.4)."""
    driver, sizes = _driver(), list[int]()
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    if not hasattr(driver, "cuFuncGetParamInfo"):
        return sizes
    handle = ctypes.c_void_p(function)
    while not driver.cuFuncGetParamInfo(handle, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)):
        sizes.append(size.value)
    return sizes


def _current_context(driver: Any) -> ctypes.c_void_p:
    """The CUDA context of this thread; a null pointer if it has none."""
    context = ctypes.c_void_p()
    _check(driver, driver.cuCtxGetCurrent(ctypes.byref(context)))
    return context


def _type(one: Tensor | int | float) -> Callable[[Any], Any]:
    if isinstance(one, Tensor):
        return ctypes.c_void_p
    return ctypes.c_int if isinstance(one, int) else ctypes.c_double


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MissingError("expected the CUDA driver (libcuda.so.1), found none: install NVIDIA's driver") from error


def _check(driver: Any, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA error: {text.value.decode() if text.value else code}")
