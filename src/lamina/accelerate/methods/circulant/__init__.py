"""Block-circulant layers: ``k`` times fewer weights, multiplied in the frequency domain (Ding et al., CirCNN, 2017)."""

from lamina.accelerate.methods.circulant.config import Circulant

__all__ = ["Circulant"]
