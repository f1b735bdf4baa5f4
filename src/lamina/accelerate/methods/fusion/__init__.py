"""Fused layers: a product, its bias, its activation and its max pooling without a pass over memory between them."""

from lamina.accelerate.methods.fusion.config import Fusion

__all__ = ["Fusion"]
