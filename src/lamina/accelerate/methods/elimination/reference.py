"""The definition of layers with pruned inputs: plain operators, for any floating-point dtype and device.

``index`` holds the remaining inputs in the order of the weight's columns. By tap, an input is a channel at one tap of
the kernel, ``channel * taps + tap``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor) -> Tensor:
    """``x (..., in)``, ``weight (out, kept)`` to ``(..., out)``."""
    return F.linear(x.index_select(-1, index), weight, bias)


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """By channel: ``x (N, in, H, W)``, ``weight (out, kept, KH, KW)`` to ``(N, out, H', W')``."""
    return F.conv2d(x.index_select(1, index), weight, bias, stride, padding, dilation)


def conv_taps(
    x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor,
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, moved: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """By tap: ``x (N, in, H, W)``, ``weight (out, kept)`` to ``(N, out, H', W')``, through the unfolded input.

    With ``moved`` the rows of the unfolded input are `swapped`, as in the paper.
    """
    sizes = [
        (size + 2 * pad - step * (taps - 1) - 1) // advance + 1
        for size, pad, step, taps, advance in zip(x.shape[2:], padding, dilation, kernel, stride, strict=True)
    ]
    unfolded = F.unfold(x, kernel, dilation, padding, stride)
    y = weight @ (unfolded.index_select(1, index) if moved is None else swapped(unfolded, index, moved, 1))
    y = y if bias is None else y + bias.to(y.dtype)[:, None]
    image: Tensor = y.unflatten(2, sizes)
    return image


def swap_order(kept: Sequence[int], total: int) -> list[int]:
    """DeftNN's reordering: kept inputs beyond the first ``len(kept)`` of ``total`` replace pruned ones.

    >>> swap_order([0, 2, 5, 6], 8)
    [0, 5, 2, 6]
    """
    remaining = set(kept)
    if len(remaining) != len(kept) or not remaining <= set(range(total)):
        raise ValueError(f"expected distinct integers from 0 to {total - 1}, got {list(kept)}")
    movers = iter(sorted(each for each in remaining if each >= len(kept)))
    return [each if each in remaining else next(movers) for each in range(len(kept))]


def swapped(x: Tensor, index: Tensor, moved: Tensor, dim: int) -> Tensor:
    """``x.index_select(dim, index)`` as in DeftNN: a truncated view into which only ``moved`` inputs are copied."""
    front = x.narrow(dim, 0, len(index))
    if not len(moved):
        return front
    return front.index_copy(dim, moved, x.index_select(dim, index[moved]))


def dense_weight(weight: Tensor, index: Tensor, inputs: int, kernel: Sequence[int] = ()) -> Tensor:
    """The dense weight ``(out, inputs, *kernel)``, with zeros for pruned inputs.

    ``weight`` is ``(out, kept, *kernel)``, or by tap ``(out, kept)``.
    """
    by_tap = weight.dim() == 2
    taps = torch.Size(kernel).numel() if by_tap else 1
    full = weight.new_zeros(weight.shape[0], inputs * taps, *weight.shape[2:])
    full = full.index_copy(1, index, weight)
    return full.unflatten(1, (inputs, *kernel)) if by_tap and kernel else full
