"""Products that skip zeros of the activations: from ELLPACK-DIB, or over the row union (Spartan)."""

from lamina.accelerate.methods.activation_sparsity.config import Sparse

__all__ = ["Sparse"]
