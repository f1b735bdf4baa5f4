"""Simulated workloads: matrix products of convolutions, and masks of their non-zeros."""

from lamina.simulate.workloads.backward import backward
from lamina.simulate.workloads.columns import Mask, Order, im2col, line_density
from lamina.simulate.workloads.convolutions import GRADIENT, ConvolutionGemm, convolutions
from lamina.simulate.workloads.patterns import PATTERNS, MapShape, pattern
from lamina.simulate.workloads.recorded import (
    RecordedMask,
    mask_names,
    provenance_of,
    read_masks,
    shipped_masks,
    write_masks,
)

__all__ = [
    "GRADIENT",
    "PATTERNS",
    "ConvolutionGemm",
    "MapShape",
    "Mask",
    "Order",
    "RecordedMask",
    "backward",
    "convolutions",
    "im2col",
    "line_density",
    "mask_names",
    "pattern",
    "provenance_of",
    "read_masks",
    "shipped_masks",
    "write_masks",
]
