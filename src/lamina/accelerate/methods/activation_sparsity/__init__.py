"""Products that skip zeros of the activations, stored as ELLPACK-DIB or compacted by rows (Spartan)."""

from lamina.accelerate.methods.activation_sparsity.config import Sparse

__all__ = ["Sparse"]
