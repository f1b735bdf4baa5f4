"""Linear maps and convolutions that lack some of their inputs: checked, and computed the way that was asked for.

``impl`` says how the inputs that stay reach the product: ``gather`` copies them and ``swap`` copies those out of place,
both for the vendor library's product; ``slice`` gives it a view. ``pack`` copies them by a kernel, for the library's
product of linear maps and for a kernel of ours in convolutions; ``kernel`` looks them up inside its loads. `chosen`
tells what ``auto`` means for given tensors; nothing falls back on anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.operands import HAS_TRITON, cast, check_operands, compute_dtype, has_kernels, sizes
from lamina.accelerate.methods.elimination import reference
from lamina.accelerate.methods.elimination.config import IMPLS, By, Impl
from lamina.accelerate.methods.elimination.table import columns_of, longest_run
from lamina.errors import MissingError, UnsupportedError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.elimination import ops
    from lamina.accelerate.methods.elimination.launches import INSTEAD, check_taps
    from lamina.accelerate.runtime.triton_ops import check_kernel_operand

KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNEL_TAPS = 31
WIDE = 16
"""Bytes of neighbours in the table from which on looking them up costs no more than copying them first."""


class Lookup(NamedTuple):
    """Which inputs stay, as each implementation needs it told. Made once by `lookup`: reading an index takes a wait.

    ``places`` names the inputs in the order of the weight's columns, ``columns`` and ``columns_last`` are the kernel's
    tables with channels and with taps outermost, ``moved`` the columns whose input is not of the same place, ``prefix``
    says that there are none, ``run`` how many neighbours the table names at once, ``inputs`` how many there were.
    """

    places: Tensor
    columns: Tensor
    columns_last: Tensor
    moved: Tensor
    prefix: bool
    run: int
    inputs: int
    by: By

    @property
    def whole(self) -> bool:
        """Whether nothing was eliminated and nothing is out of place."""
        return self.prefix and len(self.places) == self.inputs


def lookup(index: Tensor, inputs: int, taps: int = 1, by: By = "channel") -> Lookup:
    """Check an index and derive the rest.

    Args:
        index: different inputs of ``inputs``, at least one; by tap ``channel * taps + tap`` of ``inputs * taps``.
        inputs: features or channels before the elimination.
        taps: of the window.
        by: what one entry of the index is.

    Raises:
        UsageError: an entry is out of range or comes twice, or there is none.
    """
    total = inputs * taps if by == "tap" else inputs
    if index.dim() != 1 or index.dtype != torch.int64:
        raise UsageError(f"index: expected int64 of one axis, got {index.dtype} of {tuple(index.shape)}")
    places = index.tolist()
    if not places or min(places) < 0 or max(places) >= total or len(set(places)) != len(places):
        said = f"{len(places)} from {min(places)} to {max(places)}" if places else "none"
        raise UsageError(f"index: expected different numbers from 0 to {total - 1}, got {said}: is it another layer's?")
    moved = [place for place, source in enumerate(places) if place != source]
    if by == "tap":
        columns = columns_last = index.int()
        run = longest_run(places, stride=taps)
    else:
        columns, columns_last = (columns_of(index, taps, tap_major=last) for last in (False, True))
        run = longest_run(places)
    out_of_place = torch.tensor(moved, dtype=torch.int64, device=index.device)
    return Lookup(index, columns, columns_last, out_of_place, not moved, run, total, by)


def chosen(impl: Impl, x: Tensor, at: Lookup, taps: int = 1) -> Impl:
    """The implementation that ``impl`` stands for; only ``auto`` is anything but itself.

    ``auto`` is a slice where nothing has moved and the library takes it as a view, in linear maps. Else, for the types
    and windows that kernels take, on a GPU: the kernel where its loads are wide, by tap, and for a single row; a pack
    otherwise. Else a gather.

    Raises:
        UsageError: no such implementation.
        MissingError: ``impl`` needs Triton, which is not installed.
        UnsupportedError: inputs have moved, so that no slice has them all.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "auto":
        if at.whole or (at.prefix and taps == 1 and x.dim() < 4):
            return "slice"
        if not (has_kernels(x) and compute_dtype(x) in KERNEL_TYPES and taps <= KERNEL_TAPS):
            return "gather"
        if at.by == "tap":
            return "kernel"
        if x.dim() < 4:
            return "kernel" if x.shape[:-1].numel() == 1 else "pack"
        wide = at.prefix or at.run * x.itemsize >= WIDE
        return "kernel" if wide and ops.channels_last(x) else "pack"
    if impl == "slice" and not at.prefix:
        raise UnsupportedError(
            f'impl="slice": expected the first {len(at.places)} inputs to stay, got {len(at.moved)} others; '
            'reorder the outputs of the layer before, or use impl="auto"'
        )
    if impl == "slice" and at.by == "tap" and not at.whole:
        raise UnsupportedError('impl="slice" is for choices by channel; use "kernel", "swap" or "gather" here')
    if impl == "pack" and at.by == "tap":
        raise UnsupportedError('impl="pack" is for choices by channel; use "kernel", "swap" or "gather" here')
    if impl in ("pack", "kernel") and not HAS_TRITON:
        raise MissingError(f'impl="{impl}" needs Triton: install lamina with its kernels extra, or use impl="gather"')
    return impl


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, at: Lookup, *, impl: Impl = "auto", tile: Sequence[int] = ()
) -> Tensor:
    """``y = x[..., index] W^T + b``.

    Args:
        x: ``(..., inputs)``, of any strides.
        weight: ``(out, kept)``, compacted.
        bias: ``(out,)``.
        at: which inputs stay.
        impl: how to compute it.
        tile: of the kernel, `Tile.pack`; the sizes decide, if left out.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the implementation does not take this type or choice.
        MissingError: the kernel needs a GPU, or Triton.
    """
    if weight.dim() != 2 or weight.shape[1] != len(at.places):
        raise UsageError(f"weight: expected (out, {len(at.places)}), got {sizes(weight)}")
    if not x.dim() or x.shape[-1] != at.inputs:
        raise UsageError(f"x: expected (..., {at.inputs}), got {sizes(x)}")
    check_operands(x, weight, bias)
    match chosen(impl, x, at):
        case "slice":
            return F.linear(x if at.whole else x.narrow(-1, 0, len(at.places)), weight, bias)
        case "swap":
            return F.linear(reference.swapped(x, at.places, at.moved, -1), weight, bias)
        case "pack" | "kernel" as name:
            dtype = compute_dtype(x)
            flat = x.reshape(-1, x.shape[-1]).to(dtype)
            check_kernel_operand(flat, "elimination", INSTEAD)
            if name == "pack":
                y = F.linear(ops.pack(flat[..., None, None], at.places).flatten(1), weight, bias)
            else:
                columns = None if at.prefix else at.columns
                y = ops.linear(flat, weight.to(dtype), cast(bias, dtype), columns, at.run, list(tile))
            return y.reshape(*x.shape[:-1], weight.shape[0])
        case _:
            return reference.linear(x, weight, bias, at.places)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, at: Lookup, *, kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1),
    impl: Impl = "auto", tile: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """A convolution that lacks some of its channels, or some of their taps.

    Args:
        x: ``(N, inputs, H, W)``, channels-last or not; the output follows.
        weight: ``(out, kept, KH, KW)``, or by tap ``(out, kept)``.
        bias: ``(out,)``.
        at: which inputs stay.
        kernel: sizes of the window.
        stride, padding, dilation: one number for each spatial axis.
        impl: how to compute it.
        tile: of the kernel, `Tile.pack`; the sizes decide, if left out.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the implementation does not take this type, window or choice.
        MissingError: the kernel needs a GPU, or Triton.
    """
    taps = kernel[0] * kernel[1]
    channels = at.inputs // taps if at.by == "tap" else at.inputs
    expected = (len(at.places),) if at.by == "tap" else (len(at.places), *kernel)
    if tuple(weight.shape[1:]) != expected:
        raise UsageError(f"weight: expected (out, {', '.join(map(str, expected))}), got {sizes(weight)}")
    if x.dim() != 4 or x.shape[1] != channels:
        raise UsageError(f"x: expected (N, {channels}, H, W), got {sizes(x)}")
    if at.columns.numel() != weight[0].numel():
        raise UsageError(f"at: expected a lookup of {taps} taps, got one of {at.columns.numel() // len(at.places)}")
    check_operands(x, weight, bias)
    name = chosen(impl, x, at, taps)
    if name in ("pack", "kernel"):
        dtype = compute_dtype(x)
        x = x.to(dtype)
        check_kernel_operand(x, "elimination", INSTEAD)
        check_taps(kernel)
        last = ops.channels_last(x)
        if name == "pack":
            x = ops.pack(x, at.places)
        table, matrix = _matrix(x, weight.to(dtype), at, first=name == "pack" or at.prefix)
        steps = [list(step) for step in (kernel, stride, padding, dilation)]
        y: Tensor = ops.conv(x, matrix, cast(bias, dtype), table, *steps, at.run, list(tile), last)
        return y
    if at.by == "tap" and not at.whole:
        moved = at.moved if name == "swap" else None
        return reference.conv_taps(x, weight, bias, at.places, kernel, stride, padding, dilation, moved)
    if name == "gather" and not at.whole:
        return reference.conv(x, weight, bias, at.places, stride, padding, dilation)
    if not at.whole:
        x = reference.swapped(x, at.places, at.moved, 1) if name == "swap" else x.narrow(1, 0, len(at.places))
    return F.conv2d(
        x, weight.unflatten(1, (-1, *kernel)) if at.by == "tap" else weight, bias, stride, padding, dilation
    )


def _matrix(x: Tensor, weight: Tensor, at: Lookup, first: bool) -> tuple[Tensor | None, Tensor]:
    """The table, if one is needed, and the weights as a matrix, in the order in which the input's memory lies."""
    if at.by == "tap":
        return at.columns, weight
    if x.stride(1) == 1 and x.shape[1] > 1:
        return None if first else at.columns_last, weight.permute(0, 2, 3, 1).flatten(1)
    return at.columns, weight.flatten(1)
