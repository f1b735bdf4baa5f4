"""The configuration of on-chip near-compute data fission (DeftNN, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.methods.weight_only.config import FORMATS, Format
from lamina.errors import UsageError

OnChip = Format | Literal["float"]
"""Format of values in shared memory; ``float`` is float32, not packed."""

Tile = Literal[4, 6, 8]
"""Outputs of a thread along each axis."""

Impl = Literal["auto", "reference", "kernel"]
"""``kernel`` runs on CUDA cores of a GPU in float32. ``reference``, the definition, rounds the operands and calls the
vendor library. ``auto`` is ``kernel`` on a GPU and ``reference`` elsewhere."""

TILES: tuple[Tile, ...] = get_args(Tile)
IMPLS: tuple[Impl, ...] = get_args(Impl)
ON_CHIP: tuple[OnChip, ...] = ("float", *FORMATS)


@dataclass(frozen=True)
class OnChipFission:
    """Pack both operands of linear layers and 2D convolutions in shared memory, as the paper does.

    Weights and activations stay float32 in device memory. It pays only where shared memory is the limit;
    `WeightOnly` is for users.

    Args:
        format: of values in shared memory; ``float`` is the same kernel without fission, the baseline.
        tile: outputs of a thread along each axis.
        keep: the fraction of input channels that synapse vector elimination keeps, in (0, 1]. Below 1 one kernel
            has both: a table leads it past the pruned channels.
        impl: the implementation of the new layers; see `Impl`.

    Raises:
        UsageError: naming what was expected.
    """

    format: OnChip = "deft16"
    tile: Tile = 8
    keep: float = 1.0
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        check_choice("format", self.format, ON_CHIP)
        check_choice("impl", self.impl, IMPLS)
        check_tile(self.tile)
        if isinstance(self.keep, bool) or not isinstance(self.keep, int | float) or not 0 < self.keep <= 1:
            raise UsageError(f"keep: expected a number above 0 and up to 1, got {self.keep!r}")


def check_tile(tile: object) -> None:
    """Refuse an unknown tile.

    Raises:
        UsageError: naming the known ones.
    """
    if isinstance(tile, bool) or tile not in TILES:
        raise UsageError(f"tile: expected one of {', '.join(map(str, TILES))}, got {tile!r}")
