"""Tensors that kernels read in every call, made once and kept for the life of the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

from lamina.errors import UsageError

_Arguments = ParamSpec("_Arguments")


def constant(make: Callable[_Arguments, Tensor]) -> Callable[_Arguments, Tensor]:
    """Cache the tensor that a function makes of hashable arguments.

    The function runs in a thread of its own. The caller may be the first call of a network that was compiled with
    ``mode="reduce-overhead"``: what its thread allocates belongs to the memory pool of the CUDA graphs, which reuses
    the memory of every tensor that is not an output. Dispatch modes and inference mode of the caller do not reach the
    thread either.

    Raises:
        UsageError: a CUDA graph is being captured, in which the host cannot copy to the device.
    """
    made: dict[tuple[object, ...], Tensor] = {}

    @wraps(make)
    def call(*args: _Arguments.args, **options: _Arguments.kwargs) -> Tensor:
        key = (*args, *options.items())
        found = made.get(key)
        if found is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise UsageError("expected a first call of the layer before CUDA graph capture, not during it")
            with ThreadPoolExecutor(1) as thread:
                found = made[key] = thread.submit(make, *args, **options).result()
        return found

    return call
