"""Linear layers and convolutions with pruned inputs: operands are checked, then the implementation ``impl`` runs.

``gather`` copies the remaining inputs, ``swap`` copies only those that have moved, and ``slice`` is a view of them; the
product is the vendor library's. ``pack`` copies by a kernel; the product is the library's in linear layers and a Triton
kernel's in convolutions. ``kernel`` reads inputs through an index table inside its loads. `chosen` resolves ``auto``;
no other implementation falls back.
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
    from lamina.accelerate.methods.elimination.launches import ALTERNATIVE, check_taps
    from lamina.accelerate.runtime.triton_ops import check_kernel_operand

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNEL_TAPS = 31
MIN_RUN_BYTES = 16
"""Bytes of consecutive inputs in the index from which on a table lookup costs no more than a copy."""


class Lookup(NamedTuple):
    """The remaining inputs in the forms that implementations need. `lookup` makes it once, since it synchronizes.

    Attributes:
        kept: the inputs in the order of the weight's columns.
        columns, columns_last: the kernel's index tables, with channels or taps outermost.
        moved: columns whose input has another index.
        prefix: whether no column has moved.
        run: consecutive inputs that the table always holds together.
        inputs: the number of inputs, pruned ones included.
        by: what one entry of the index is.
    """

    kept: Tensor
    columns: Tensor
    columns_last: Tensor
    moved: Tensor
    prefix: bool
    run: int
    inputs: int
    by: By

    @property
    def whole(self) -> bool:
        """Whether no input is pruned or moved."""
        return self.prefix and len(self.kept) == self.inputs


def lookup(index: Tensor, inputs: int, taps: int = 1, by: By = "channel") -> Lookup:
    """Check an index and derive the tables.

    Args:
        index: distinct inputs below ``inputs``, at least one; by tap ``channel * taps + tap`` below ``inputs * taps``.
        inputs: features or channels, pruned ones included.
        taps: of the kernel.
        by: what one entry of the index is.

    Raises:
        UsageError: an entry is out of range or comes twice, or there is none.
    """
    total = inputs * taps if by == "tap" else inputs
    if index.dim() != 1 or index.dtype != torch.int64:
        raise UsageError(f"index: expected int64 of one axis, got {index.dtype} of {tuple(index.shape)}")
    entries = index.tolist()
    if not entries or min(entries) < 0 or max(entries) >= total or len(set(entries)) != len(entries):
        got = f"{len(entries)} from {min(entries)} to {max(entries)}" if entries else "none"
        raise UsageError(f"index: expected distinct integers from 0 to {total - 1}, got {got}: is it another layer's?")
    moved = [column for column, source in enumerate(entries) if column != source]
    if by == "tap":
        columns = columns_last = index.int()
        run = longest_run(entries, stride=taps)
    else:
        columns, columns_last = (columns_of(index, taps, tap_major=last) for last in (False, True))
        run = longest_run(entries)
    moved_columns = torch.tensor(moved, dtype=torch.int64, device=index.device)
    return Lookup(index, columns, columns_last, moved_columns, not moved, run, total, by)


def chosen(impl: Impl, x: Tensor, at: Lookup, taps: int = 1) -> Impl:
    """Resolve ``auto``; any other ``impl`` is checked and returned.

    ``auto`` is ``slice`` in linear layers whose remaining inputs are a prefix. Otherwise, on a GPU and for dtypes and
    windows that kernels support, it is ``kernel`` by tap, for a single row, and where its loads are vectorized, and
    ``pack`` elsewhere. In all other cases it is ``gather``.

    Raises:
        UsageError: no such implementation.
        MissingError: ``impl`` needs Triton, which is not installed.
        UnsupportedError: ``slice`` of inputs that are no prefix, or an implementation that does not prune by tap.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "auto":
        if at.whole or (at.prefix and taps == 1 and x.dim() < 4):
            return "slice"
        if not (has_kernels(x) and compute_dtype(x) in KERNEL_DTYPES and taps <= KERNEL_TAPS):
            return "gather"
        if at.by == "tap":
            return "kernel"
        if x.dim() < 4:
            return "kernel" if x.shape[:-1].numel() == 1 else "pack"
        wide = at.prefix or at.run * x.itemsize >= MIN_RUN_BYTES
        return "kernel" if wide and ops.channels_last(x) else "pack"
    if impl == "slice" and not at.prefix:
        raise UnsupportedError(
            f'impl="slice": expected the first {len(at.kept)} inputs to remain, got {len(at.moved)} others; '
            'permute the outputs of the previous layer, or use impl="auto"'
        )
    if impl == "slice" and at.by == "tap" and not at.whole:
        raise UnsupportedError('impl="slice" prunes by channel only; use "kernel", "swap" or "gather" here')
    if impl == "pack" and at.by == "tap":
        raise UnsupportedError('impl="pack" prunes by channel only; use "kernel", "swap" or "gather" here')
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
        at: the remaining inputs.
        impl: the implementation.
        tile: of the kernel, as `Tile.pack` gives it; by default chosen by the sizes.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        UnsupportedError: the implementation does not support this dtype or index.
        MissingError: the kernel needs a GPU, or Triton.
    """
    if weight.dim() != 2 or weight.shape[1] != len(at.kept):
        raise UsageError(f"weight: expected (out, {len(at.kept)}), got {sizes(weight)}")
    if not x.dim() or x.shape[-1] != at.inputs:
        raise UsageError(f"x: expected (..., {at.inputs}), got {sizes(x)}")
    check_operands(x, weight, bias)
    match chosen(impl, x, at):
        case "slice":
            return F.linear(x if at.whole else x.narrow(-1, 0, len(at.kept)), weight, bias)
        case "swap":
            return F.linear(reference.swapped(x, at.kept, at.moved, -1), weight, bias)
        case "pack" | "kernel" as name:
            dtype = compute_dtype(x)
            flat = x.reshape(-1, x.shape[-1]).to(dtype)
            check_kernel_operand(flat, "elimination", ALTERNATIVE)
            if name == "pack":
                y = F.linear(ops.pack_eager(flat[..., None, None], at.kept).flatten(1), weight, bias)
            else:
                columns = None if at.prefix else at.columns
                y = ops.linear_eager(flat, weight.to(dtype), cast(bias, dtype), columns, at.run, list(tile))
            return y.reshape(*x.shape[:-1], weight.shape[0])
        case _:
            return reference.linear(x, weight, bias, at.kept)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, at: Lookup, *, kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0), dilation: tuple[int, int] = (1, 1),
    impl: Impl = "auto", tile: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """A convolution with pruned input channels, or pruned taps of them.

    Args:
        x: ``(N, inputs, H, W)``, channels-last or not; the output follows.
        weight: ``(out, kept, KH, KW)``, or by tap ``(out, kept)``.
        bias: ``(out,)``.
        at: which inputs stay.
        kernel: its size along each spatial axis.
        stride, padding, dilation: along each spatial axis.
        impl: how to compute it.
        tile: of the kernel, `Tile.pack`; the sizes decide, if left out.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        UnsupportedError: the implementation does not support this dtype, window or index.
        MissingError: the kernel needs a GPU, or Triton.
    """
    taps = kernel[0] * kernel[1]
    channels = at.inputs // taps if at.by == "tap" else at.inputs
    expected = (len(at.kept),) if at.by == "tap" else (len(at.kept), *kernel)
    if tuple(weight.shape[1:]) != expected:
        raise UsageError(f"weight: expected (out, {', '.join(map(str, expected))}), got {sizes(weight)}")
    if x.dim() != 4 or x.shape[1] != channels:
        raise UsageError(f"x: expected (N, {channels}, H, W), got {sizes(x)}")
    if at.columns.numel() != weight[0].numel():
        raise UsageError(f"at: expected a lookup of {taps} taps, got one of {at.columns.numel() // len(at.kept)}")
    check_operands(x, weight, bias)
    name = chosen(impl, x, at, taps)
    if name in ("pack", "kernel"):
        dtype = compute_dtype(x)
        x = x.to(dtype)
        check_kernel_operand(x, "elimination", ALTERNATIVE)
        check_taps(kernel)
        last = ops.channels_last(x)
        if name == "pack":
            x = ops.pack_eager(x, at.kept)
        table, matrix = _matrix(x, weight.to(dtype), at, packed=name == "pack")
        geometry = [list(sizes) for sizes in (kernel, stride, padding, dilation)]
        y: Tensor = ops.conv_eager(x, matrix, cast(bias, dtype), table, *geometry, at.run, list(tile), last)
        return y
    if at.by == "tap" and not at.whole:
        moved = at.moved if name == "swap" else None
        return reference.conv_taps(x, weight, bias, at.kept, kernel, stride, padding, dilation, moved)
    if name == "gather" and not at.whole:
        return reference.conv(x, weight, bias, at.kept, stride, padding, dilation)
    if not at.whole:
        x = reference.swapped(x, at.kept, at.moved, 1) if name == "swap" else x.narrow(1, 0, len(at.kept))
    return F.conv2d(
        x, weight.unflatten(1, (-1, *kernel)) if at.by == "tap" else weight, bias, stride, padding, dilation
    )


def _matrix(x: Tensor, weight: Tensor, at: Lookup, packed: bool) -> tuple[Tensor | None, Tensor]:
    """The index table, if one is needed, and the weights as a matrix, in the order of the input's memory format.

    A packed input has the remaining channels only, so the tables of all channels are out of its range.
    """
    if at.by == "tap":
        return at.columns, weight
    if packed or (x.stride(1) == 1 and x.shape[1] > 1):
        return None if packed or at.prefix else at.columns_last, weight.permute(0, 2, 3, 1).flatten(1)
    return at.columns, weight.flatten(1)
