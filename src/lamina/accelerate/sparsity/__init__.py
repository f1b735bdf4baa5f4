"""Zeros in activations: found while training, stored compactly, left out of products."""

from lamina.accelerate.sparsity.config import Sparse
from lamina.accelerate.sparsity.monitor import Monitor, Pace, Parameters

__all__ = ["Monitor", "Pace", "Parameters", "Sparse"]
