"""ELLPACK-DIB: column-major ELLPACK whose value and row index share one word of 32 bits (Spartan, section 6.3).

A column's non-zeros stand in ``counts[panel, column]`` slots, in the order of their rows; slot ``s`` of all columns
lies side by side, so that neighbouring columns are read together. A word has the row within its panel in its high
half and the value, divided by the panel's scale, as float16 in its low half. Panels of at most 65,536 rows make any
number of rows addressable.

What does not fit is never lost unseen. A scale is a power of two that brings the panel's largest finite value into
float16's range, so no finite value of up to 32 bits overflows where the scale was fitted; a wider one becomes infinite,
and so does one too large for a scale that was given. A column of more non-zeros than there are slots keeps its true
count, which makes products of it NaN and `EllpackDib.check` complain. NaN and infinities are non-zeros; negative zero
is a zero. A value below float16's range keeps its slot as 0: `rounding` counts these and measures the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.errors import UsageError

PANEL = 1 << 16
"""Rows that 16 bits can tell apart."""

TARGET_EXPONENT = 14
"""A fitted panel's largest finite value lies between 2 to this power and twice that, below float16's 65,504."""


@dataclass(frozen=True)
class EllpackDib:
    """A matrix ``(rows, columns)`` without its zeros.

    Attributes:
        words: int32 ``(panels, capacity, columns)``; slots beyond a column's count hold anything.
        counts: int32 ``(panels, columns)``, non-zeros of a column in a panel, also those beyond ``capacity``.
        scales: float32 ``(panels,)``, powers of two.
        rows: of the matrix.
        panel: rows of a panel.
    """

    words: Tensor
    counts: Tensor
    scales: Tensor
    rows: int
    panel: int = PANEL

    def __post_init__(self) -> None:
        check_panel(self.panel)
        panels = panels_of(self.rows, self.panel)
        if self.words.dim() != 3 or self.words.shape[0] != panels:
            raise UsageError(f"words: expected ({panels}, capacity, columns), got {tuple(self.words.shape)}")
        if self.counts.shape != (panels, self.columns) or self.scales.shape != (panels,):
            raise UsageError(
                f"expected counts ({panels}, {self.columns}) and scales ({panels},), got {tuple(self.counts.shape)} "
                f"and {tuple(self.scales.shape)}"
            )
        types = self.words.dtype, self.counts.dtype, self.scales.dtype
        if types != (torch.int32, torch.int32, torch.float32):
            raise UsageError(f"expected int32 words and counts and float32 scales, got {types}")

    @property
    def columns(self) -> int:
        """Of the matrix."""
        return self.words.shape[2]

    @property
    def capacity(self) -> int:
        """Slots of a column in a panel."""
        return self.words.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.rows, self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(tensor.numel() * tensor.itemsize for tensor in (self.words, self.counts, self.scales))

    @cached_property
    def nonzeros(self) -> int:
        """Non-zeros of the matrix; waits for the device."""
        return int(self.counts.sum())

    def check(self) -> None:
        """Complain of columns that did not fit; waits for the device.

        Raises:
            UsageError: with the slots that would have been needed.
        """
        longest = int(self.counts.max()) if self.counts.numel() else 0
        if longest > self.capacity:
            raise UsageError(
                f"ELLPACK-DIB: expected at most {self.capacity} non-zeros in a column of a panel, got {longest}; "
                "convert with more capacity, or with none given"
            )


class Rounding(NamedTuple):
    """What float16 made of a matrix: values lost at either end, and the largest errors of the others.

    ``overflowed`` finite values are infinite, ``flushed`` non-zeros are 0; ``relative`` is over the values that
    float16 holds with its full precision, ``absolute`` over all that did not overflow.
    """

    overflowed: int
    flushed: int
    relative: float
    absolute: float


def check_panel(panel: int) -> None:
    """Refuse panels that 16 bits cannot address.

    Raises:
        UsageError: naming what was expected.
    """
    if not isinstance(panel, int) or isinstance(panel, bool) or not 1 <= panel <= PANEL:
        raise UsageError(f"panel: expected 1 to {PANEL} rows, got {panel!r}")


def check_capacity(capacity: int | None) -> None:
    """Refuse a negative number of slots.

    Raises:
        UsageError: naming what was expected.
    """
    if capacity is not None and (not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 0):
        raise UsageError(f"capacity: expected a whole number of slots, got {capacity!r}")


def panels_of(rows: int, panel: int) -> int:
    """How many panels a matrix has; one even of no rows."""
    return max(1, -(-rows // panel))
