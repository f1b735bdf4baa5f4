"""Data fission: weights stored in fewer bits and widened in registers, where only bytes bind."""

from lamina.accelerate.fission.config import Fission

__all__ = ["Fission"]
