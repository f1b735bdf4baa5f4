"""ELLPACK-DIB: column-major ELLPACK with value and row index in one 32-bit word (Spartan, section 6.3).

The non-zeros of a column occupy ``counts[panel, column]`` slots, rows ascending; slot ``s`` of all columns is
contiguous, so that loads of adjacent columns coalesce. The high 16 bits of a word are the row within its panel, the low
16 bits the value divided by the panel's scale, as float16. Panels of at most 65,536 rows make any number of rows
addressable.

Nothing is lost silently. A scale is a power of two that brings the panel's finite amax into float16's range, so that no
finite value of up to 32 bits overflows under a fitted scale; wider types, and values too large for a given scale,
become infinite. A column with more non-zeros than slots keeps its true count, which makes products with it NaN and
`EllpackDib.check` raise. NaN and infinities are non-zeros; negative zero is a zero. A value below float16's range keeps
its slot as 0: `rounding` counts these and measures the other errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lamina.errors import UsageError

PANEL = 1 << 16
"""Rows that 16 bits address."""

TARGET_EXPONENT = 14
"""A fitted scale brings the finite amax to ``[2**TARGET_EXPONENT, 2**(TARGET_EXPONENT + 1))``, below 65,504."""


@dataclass(frozen=True)
class EllpackDib:
    """A matrix ``(rows, columns)`` without its zeros.

    Attributes:
        words: int32 ``(panels, capacity, columns)``; slots beyond a column's count are undefined.
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
        """Non-zeros of the matrix; synchronizes."""
        return int(self.counts.sum())

    def check(self) -> None:
        """Check that no column exceeds the capacity; synchronizes.

        Raises:
            UsageError: with the capacity that is needed.
        """
        longest = int(self.counts.max()) if self.counts.numel() else 0
        if longest > self.capacity:
            raise UsageError(
                f"ELLPACK-DIB: expected at most {self.capacity} non-zeros in a column of a panel, got {longest}; "
                "convert with more capacity, or without a given one"
            )


class Rounding(NamedTuple):
    """Errors of the rounding to float16: overflows, underflows, and the largest errors of the other values.

    ``overflowed`` finite values are infinite, ``flushed`` non-zeros are 0; ``relative`` is over the values that
    float16 holds with its full precision, ``absolute`` over all that did not overflow.
    """

    overflowed: int
    flushed: int
    relative: float
    absolute: float


def check_panel(panel: int) -> None:
    """Check that 16 bits address a panel.

    Raises:
        UsageError: naming what was expected.
    """
    if not isinstance(panel, int) or isinstance(panel, bool) or not 1 <= panel <= PANEL:
        raise UsageError(f"panel: expected 1 to {PANEL} rows, got {panel!r}")


def check_capacity(capacity: int | None) -> None:
    """Check the number of slots.

    Raises:
        UsageError: naming what was expected.
    """
    if capacity is not None and (not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 0):
        raise UsageError(f"capacity: expected a non-negative integer, got {capacity!r}")


def panels_of(rows: int, panel: int) -> int:
    """The number of panels of a matrix, at least one."""
    return max(1, -(-rows // panel))
