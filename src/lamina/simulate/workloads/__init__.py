"""Simulated workloads: matrix products of convolutions, and masks of their non-zeros."""

from lamina.simulate.workloads.columns import Mask, Order, im2col, line_density
from lamina.simulate.workloads.convolutions import ConvolutionGemm, convolutions
from lamina.simulate.workloads.patterns import PATTERNS, MapShape, pattern
from lamina.simulate.workloads.recorded import RecordedMask, provenance_of, read_masks, write_masks

__all__ = [
    "PATTERNS",
    "ConvolutionGemm",
    "MapShape",
    "Mask",
    "Order",
    "RecordedMask",
    "convolutions",
    "im2col",
    "line_density",
    "pattern",
    "provenance_of",
    "read_masks",
    "write_masks",
]
