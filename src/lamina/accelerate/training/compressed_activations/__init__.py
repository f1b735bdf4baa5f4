"""Activations saved for the backward pass, compressed."""

from lamina.accelerate.training.compressed_activations.context import (
    CompressedActivations,
    CompressedForward,
    CompressionStatistics,
    compressed_activations,
)

__all__ = ["CompressedActivations", "CompressedForward", "CompressionStatistics", "compressed_activations"]
