"""Launches through the CUDA driver, for what torch's own launcher of compiled functions cannot say: begin early."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_attribute = _Attribute(id=_EARLY, value=1)


def launcher(
    function: ctypes.c_void_p, grid: tuple[int, int, int], block: tuple[int, int, int],
    args: Sequence[Tensor | int | float], shared: int, early: bool,
) -> Callable[..., None]:  # fmt: skip
    """What queues a loaded function: called with a stream, and with arguments like ``args``, addresses for tensors.

    Args:
        function: as the driver has loaded it.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        args: a tensor is passed as its first address, a whole number as an ``int``, another as a ``double``.
        shared: bytes of dynamic shared memory.
        early: whether blocks may begin once those of the kernel in front have ended, before what it wrote can be read.
    """
    from torch.cuda._utils import _check_cuda, _get_gpu_runtime_library  # private, as is all that loads functions

    kinds, driver = [*map(_kind, args)], _get_gpu_runtime_library()

    def queue(stream: int, *args: int | float) -> None:
        values = [kind(one) for kind, one in zip(kinds, args, strict=True)]
        addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = _Config(grid, block, shared, stream, ctypes.pointer(_attribute), int(early))
        _check_cuda(driver.cuLaunchKernelEx(ctypes.byref(config), function, addresses, None))

    return queue


def _kind(one: Tensor | int | float) -> Callable[[Any], Any]:
    if isinstance(one, Tensor):
        return ctypes.c_void_p
    return ctypes.c_int if isinstance(one, int) else ctypes.c_double
