"""Launches through the CUDA driver, for what torch's own launcher of compiled functions cannot say: begin early."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
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


def launch(
    function: ctypes.c_void_p, grid: tuple[int, int, int], block: tuple[int, int, int],
    args: Sequence[Tensor | int | float], shared: int, device: int, early: bool,
) -> None:  # fmt: skip
    """Queue a loaded function on torch's current stream of a device.

    Args:
        function: as the driver has loaded it.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        args: a tensor is passed as its first address, a whole number as an ``int``, another as a ``double``.
        shared: bytes of dynamic shared memory.
        device: its index.
        early: whether blocks may begin once those of the kernel in front have ended, before what it wrote can be read.

    Raises:
        RuntimeError: the driver refuses the launch.
    """
    from torch.cuda._utils import _check_cuda, _get_gpu_runtime_library  # private, as is all that loads functions

    values = [_value(one) for one in args]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    stream = torch._C._cuda_getCurrentRawStream(device)
    config = _Config(grid, block, shared, stream, ctypes.pointer(_attribute), int(early))
    _check_cuda(_get_gpu_runtime_library().cuLaunchKernelEx(ctypes.byref(config), function, addresses, None))


def _value(one: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_double:
    if isinstance(one, Tensor):
        return ctypes.c_void_p(one.data_ptr())
    return ctypes.c_int(one) if isinstance(one, int) else ctypes.c_double(one)
