"""How many zeros a tensor held at one training iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sparsity:
    """One observation: ``density`` is the share of non-zero elements.

    ``union_density`` maps a number of neighbouring columns to the share of rows in which any of them is non-zero.
    """

    layer: str
    tensor: str
    iteration: int
    density: float
    union_density: Mapping[int, float] = field(default_factory=dict)
    dead_channels: int | None = None
    longest_column: int | None = None
