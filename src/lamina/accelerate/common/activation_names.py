"""Names of activations, for configurations, which are listed without PyTorch."""

from typing import Literal

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "gelu_tanh"]
"""``gelu`` is exact, by the error function; ``gelu_tanh`` is the tanh approximation."""
