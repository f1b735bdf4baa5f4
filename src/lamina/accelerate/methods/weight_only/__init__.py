"""Weight-only quantization: weights stored in 8 or 16 bits and dequantized in registers (DeftNN's data fission)."""

from lamina.accelerate.methods.weight_only.config import WeightOnly

__all__ = ["WeightOnly"]
