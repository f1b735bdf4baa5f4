"""Phases of a training step, and what one phase of one layer has to compute and move."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The three parts of a layer's training step."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHT = "backward_weight"


@dataclass(frozen=True)
class Cost:
    """Work of one phase: operations, and the bytes it must move at least.

    ``flops`` counts a multiply-add as two and any other elementary function as one; additions of a bias
    are left out, as PyTorch's ``FlopCounterMode`` does. ``bytes_read`` and ``bytes_written`` are compulsory
    traffic: each operand once, each result once.
    """

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Operations per byte, the horizontal axis of a roofline."""
        return self.flops / self.bytes if self.bytes else 0.0
