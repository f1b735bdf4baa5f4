"""Launching short Triton kernels with little overhead: the compiled kernel is looked up in a few microseconds.

Triton's own launch inspects its settings and every global of the kernel each time, which takes the CPU longer than a
small kernel takes a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.runtime import compile_ahead
from lamina.accelerate.runtime import triton_ops as ops
from lamina.accelerate.runtime.bounded_cache import BoundedCache
from lamina.accelerate.runtime.launch_cache import (
    STREAM,
    KernelLaunch,
    is_current_device,
    record_launch,
    recording,
    unrecorded,
)
from lamina.accelerate.runtime.private_apis import supported

INT64_OFFSETS_FROM = 2**31
"""Elements from which offsets need 64 bits."""

MAX_KERNELS = 4096
"""Compiled kernels that are looked up without Triton; the oldest is evicted first."""

_SCRATCH_POINTERS = 2
"""Pointers that Triton appends to a kernel's parameters; null if it needs no scratch memory."""

_compiled: BoundedCache[tuple[Any, ...], tuple[Any, ...]] = BoundedCache(MAX_KERNELS)


def launch(
    kernel: Any, programs: int | tuple[int, ...], tensor: Tensor, *args: Any, sizes: Hashable = None, **constants: Any
) -> None:
    """Launch a kernel on the tensor's device. A grid without programs launches nothing.

    Triton's launch hooks see the first launch of a compiled kernel only. With versions of PyTorch or Triton that were
    not tested, Triton launches every time; see `private_apis`.

    Args:
        kernel: a ``triton.jit`` function.
        programs: the grid.
        tensor: on the device where the kernel runs.
        args: the kernel's arguments in front of its constants.
        sizes: what all integer arguments follow from. Launches of the same ``sizes`` and dtype are then recognized
            without an inspection of each argument. Only the first argument may be an unaligned tensor, and the kernel
            must not specialize on integers that differ between such launches.
        constants: constexpr arguments, and options such as ``num_warps``.

    Raises:
        UnsupportedError: the device has too little shared memory or too few registers for the tile.
    """
    grid = (programs,) if isinstance(programs, int) else programs
    if not all(grid):
        return
    device = tensor.device
    if ops.INTERPRETED or not is_current_device(device) or not supported():
        with unrecorded():
            ops.launch_with_triton(kernel, grid, tensor, *args, **constants)
        record_launch(partial(ops.launch_with_triton, kernel, grid, **constants), tensor, *args, addresses=False)
        return
    if sizes is None or not 0 < tensor.numel() < INT64_OFFSETS_FROM // 2:
        key = (id(kernel), device.index, *constants.values(), *map(_specialization, args))
    else:
        key = (id(kernel), device.index, *constants.values(), grid, sizes, tensor.dtype, args[0].data_ptr() % 16)
    found = _compiled.get(key)
    if found is None and compile_ahead.active():
        compile_ahead.compile_kernel(kernel, grid, *args, **constants)
        return
    if found is None:
        ops.launch_with_triton(kernel, grid, tensor, *args, **constants)  # also reports errors
        found = _prepare(kernel, grid, args, constants)
        _compiled.put(key, found)
    else:
        function, *arguments = _call(found, grid, torch._C._cuda_getCurrentRawStream(device.index), args)
        function(*arguments)
    if recording():
        kernel = _kernel_launch(kernel, found, grid, args)
        record_launch(*_call(found, grid, STREAM, args), addresses=True, kernel=kernel)


def _prepare(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """The kernel that Triton has compiled for these arguments, with what its launcher takes."""
    compiled = kernel.warmup(*args, grid=grid, **constants)
    values = [constants[name] for name in kernel.arg_names[len(args) :]]
    return compiled.run, compiled.function, compiled.packed_metadata, values, compiled


def _call(prepared: tuple[Any, ...], grid: tuple[int, ...], stream: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Triton's launcher and its arguments."""
    run, function, metadata, constants, _ = prepared
    x, y, z = (*grid, 1, 1)[:3]
    return run, x, y, z, stream, function, metadata, None, None, None, *args, *constants


def _kernel_launch(
    kernel: Any, prepared: tuple[Any, ...], grid: tuple[int, ...], args: tuple[Any, ...]
) -> KernelLaunch | None:
    """The launch for the CUDA driver; None if Triton does more than launch."""
    run, function, (warps, ctas, shared), _, compiled = prepared
    scratch = run.global_scratch_size or run.profile_scratch_size
    if ctas != 1 or scratch or run.launch_cooperative_grid:
        return None
    x, y, z = (*grid, 1, 1)[:3]
    types = [compiled.src.signature[name] for name in kernel.arg_names[: len(args)]]
    passed = [(type_, each) for type_, each in zip(types, args, strict=True) if type_ != "constexpr"]
    return KernelLaunch(
        function, (x, y, z), (32 * warps, 1, 1), shared, bool(run.launch_pdl),
        tuple(type_ for type_, _ in passed), tuple(each for _, each in passed), _SCRATCH_POINTERS,
    )  # fmt: skip


def _specialization(argument: Any) -> Any:
    """What Triton compiles an argument for: dtype and 16-byte alignment, or one, divisibility by 16 and 64 bits."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return argument == 1, argument % 16 == 0, argument < INT64_OFFSETS_FROM
