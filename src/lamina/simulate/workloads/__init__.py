"""What is simulated: the matrix products of convolutions, and which of their values are zero."""

from lamina.simulate.workloads.convolutions import ConvolutionGemm, convolutions
from lamina.simulate.workloads.patterns import PATTERNS, MapShape, pattern
from lamina.simulate.workloads.recorded import RecordedMask, read_masks, write_masks
from lamina.simulate.workloads.window import Mask, Order, Window, im2col, line_density

__all__ = [
    "PATTERNS",
    "ConvolutionGemm",
    "MapShape",
    "Mask",
    "Order",
    "RecordedMask",
    "Window",
    "convolutions",
    "im2col",
    "line_density",
    "pattern",
    "read_masks",
    "write_masks",
]
