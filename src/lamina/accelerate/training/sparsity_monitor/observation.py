"""The counts of one pass over an activation map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from lamina.record import Sparsity

WIDTHS = (2, 16, 32, 64, 128)
"""Widths of column groups: a row is in the union of a group if it holds a non-zero in any of its columns."""

WORDS = 3 + len(WIDTHS)
"""Counts of a pass: non-zeros, active channels, the longest column, then unions by width."""


@dataclass(frozen=True)
class Observation:
    """Non-zeros of one activation map at one iteration, the map read as a matrix of channels by pixels.

    Rows are channels (features), columns the pixels (samples) of all images one after another: the operand that a
    convolution or linear layer reads. A column group is ``width`` columns side by side, the last one maybe fewer.

    Attributes:
        rows, columns: the matrix's size.
        nonzeros: elements other than zero; NaN is one, negative zero is none.
        unions: for each width, how many pairs of row and column group hold a non-zero.
        active_channels: rows with a non-zero.
        longest_column: non-zeros of the fullest column.
    """

    name: str
    iteration: int
    rows: int
    columns: int
    nonzeros: int
    active_channels: int
    longest_column: int
    unions: Mapping[int, int]

    @classmethod
    def from_words(cls, name: str, iteration: int, rows: int, columns: int, words: Sequence[int]) -> Self:
        """From the counts of a pass, in the order of :data:`WORDS`."""
        nonzeros, active, longest, *unions = words
        return cls(name, iteration, rows, columns, nonzeros, active, longest, dict(zip(WIDTHS, unions, strict=True)))

    @property
    def density(self) -> float:
        """Fraction of elements that are not zero; 0 for empty maps."""
        return self.nonzeros / (self.rows * self.columns) if self.rows * self.columns else 0.0

    @property
    def sparsity(self) -> float:
        """Fraction of elements that are zero."""
        return 1 - self.density

    @property
    def dead_channels(self) -> int:
        """Rows without a non-zero."""
        return self.rows - self.active_channels

    @property
    def living_channels(self) -> int:
        """`active_channels` by its former name; deprecated."""
        return self.active_channels

    @property
    def union_density(self) -> dict[int, float]:
        """For each width, the fraction of pairs of row and column group that hold a non-zero."""
        return {
            width: union / (self.rows * -(-self.columns // width)) if self.rows * self.columns else 0.0
            for width, union in self.unions.items()
        }

    @property
    def clustering(self) -> float:
        """Correlation of neighbouring elements' being zero: 0 where zeros are independent, 1 where they come in runs.

        Of two neighbours both are non-zero with probability ``d^2 + rho d (1 - d)`` at density ``d``: this is rho,
        over the pairs that the union over two columns leaves apart. 0 where there is nothing to correlate.
        """
        pairs, density = self.rows * (self.columns // 2), self.density
        if not pairs or density in (0.0, 1.0):
            return 0.0
        both = (self.nonzeros - self.unions[2]) / pairs
        return (both - density**2) / (density * (1 - density))

    def record(self) -> Sparsity:
        """As the store keeps it."""
        return Sparsity(
            self.name,
            "output",
            self.iteration,
            self.density,
            self.union_density,
            self.dead_channels,
            self.longest_column,
        )
