"""Launching short Triton kernels: the compiled form is found by what it was compiled for, in a few microseconds.

Triton itself looks at its settings and at every global of a kernel at each launch, which takes the host longer than a
GPU takes for a small map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.accelerate import ops

_compiled: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}


def launch(kernel: Any, programs: int, tensor: Tensor, *args: Any, **switches: Any) -> None:
    """Run a kernel on the tensor's device; ``args`` come before ``switches``, which are constants or options.

    Raises:
        UnsupportedError: the device has not the memory that a tile takes.
    """
    if ops.INTERPRETED or not programs or not _is_current(tensor.device):
        ops.launch(kernel, programs, tensor, *args, **switches)
        return
    key = (id(kernel), tensor.device.index, *switches.values(), *map(_kind, args))
    found = _compiled.get(key)
    if found is None:
        ops.launch(kernel, programs, tensor, *args, **switches)  # tells of what goes wrong
        constants = [switches[name] for name in kernel.arg_names[len(args) :]]
        _compiled[key] = kernel.warmup(*args, grid=(programs,), **switches), constants
    else:
        compiled, constants = found
        compiled[programs, 1, 1](*args, *constants)


def _kind(argument: Any) -> Any:
    """What a kernel is compiled for: a type and whether an address, or a number, is a multiple of 16."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument == 1, argument % 16 == 0, argument < 2**31


def _is_current(device: torch.device) -> bool:
    return device.type == "cuda" and device.index == torch.cuda.current_device()
