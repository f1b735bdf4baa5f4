"""Activations saved for the backward pass, compressed."""

from lamina.accelerate.training.compressed_activations.context import (
    CompressedActivations,
    CompressedForward,
    CompressionStatistics,
    compressed_activations,
)
from lamina.accelerate.training.compressed_activations.passes import compressed, saving

__all__ = [
    "CompressedActivations",
    "CompressedForward",
    "CompressionStatistics",
    "compressed",
    "compressed_activations",
    "saving",
]
