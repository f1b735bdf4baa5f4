"""Phases of a training step, and the FLOPs and bytes of one phase of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The three phases of a layer's training step."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_WEIGHT = "backward_weight"


@dataclass(frozen=True)
class Cost:
    """Work of one phase: FLOPs and compulsory bytes.

    ``flops`` counts a multiply-add as two and any other elementary function as one; bias additions
    are excluded, as in PyTorch's ``FlopCounterMode``.  ``bytes_read`` and ``bytes_written`` are compulsory
    traffic: each operand once, each result once.
    """

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte, the horizontal axis of a roofline."""
        return self.flops / self.bytes if self.bytes else 0.0
