"""Launching short Triton kernels: the compiled form is found by what it was compiled for, in a few microseconds.

Triton itself looks at its settings and at every global of a kernel at each launch, which takes the host longer than a
GPU takes for a small map.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.runtime import triton_ops as ops
from lamina.accelerate.runtime.launch_cache import STREAM, is_current, launched, recording

ADDRESSES = 2**31
"""Elements from which addresses have 64 bits."""

_compiled: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def launch(kernel: Any, programs: int | tuple[int, ...], tensor: Tensor, *args: Any, **switches: Any) -> None:
    """Run a kernel on the tensor's device; ``args`` come before ``switches``, which are constants or options.

    No program is no launch. Triton's hooks of launches hear of the first one alone.

    Raises:
        UnsupportedError: the device has not the memory that a tile takes.
    """
    grid = (programs,) if isinstance(programs, int) else programs
    if not all(grid):
        return
    if ops.INTERPRETED or not is_current(tensor.device):
        ops.by_triton(kernel, grid, tensor, *args, **switches)
        launched(partial(ops.by_triton, kernel, grid, **switches), tensor, *args, addresses=False)
        return
    key = (id(kernel), tensor.device.index, *switches.values(), *map(_kind, args))
    found = _compiled.get(key)
    if found is None:
        ops.by_triton(kernel, grid, tensor, *args, **switches)  # tells of what goes wrong
        found = _compiled[key] = _prepared(kernel, grid, args, switches)
    else:
        _run(found, grid, tensor.device, args)
    _note(found, grid, args)


_alike: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def launch_alike(kernel: Any, programs: int, sizes: Hashable, x: Tensor, *args: Any, **switches: Any) -> None:
    """`launch`; what was compiled is known for the same sizes and type without a look at all arguments.

    The first argument alone may be memory that PyTorch has not aligned, and what differs otherwise are numbers that the
    kernel is not specialised to.

    Raises:
        UnsupportedError: as `launch` does.
    """
    device, grid, current = x.device, (programs,), x.is_cuda and is_current(x.device)
    key = (id(kernel), programs, sizes, x.dtype, device, args[0].data_ptr() % 16, *switches.values())
    if current and (found := _alike.get(key)) is not None:
        _run(found, grid, device, args)
        _note(found, grid, args)
        return
    launch(kernel, programs, x, *args, **switches)
    if current and 0 < x.numel() < ADDRESSES // 2:
        _alike[key] = _prepared(kernel, grid, args, switches)


def _prepared(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], switches: dict[str, Any]) -> tuple[Any, ...]:
    """What is compiled already, as `_run` takes it."""
    compiled = kernel.warmup(*args, grid=grid, **switches)
    constants = [switches[name] for name in kernel.arg_names[len(args) :]]
    return compiled.run, compiled.function, compiled.packed_metadata, constants


def _run(prepared: tuple[Any, ...], grid: tuple[int, ...], device: torch.device, args: tuple[Any, ...]) -> None:
    run, *told = _told(prepared, grid, torch._C._cuda_getCurrentRawStream(device.index), args)
    run(*told)


def _note(prepared: tuple[Any, ...], grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
    if recording():
        launched(*_told(prepared, grid, STREAM, args), addresses=True)


def _told(prepared: tuple[Any, ...], grid: tuple[int, ...], stream: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What launches, and its arguments."""
    run, function, metadata, constants = prepared
    x, y, z = (*grid, 1, 1)[:3]
    return run, x, y, z, stream, function, metadata, None, None, None, *args, *constants


def _kind(argument: Any) -> Any:
    """What a kernel is compiled for: a type and whether an address, or a number, is a multiple of 16."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument == 1, argument % 16 == 0, argument < ADDRESSES
