"""Element-wise functions."""

from __future__ import annotations

from typing import ClassVar, Literal

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer
from lamina.spec.shape import Shape, elements

OPERATIONS: dict[str, tuple[int, int]] = {
    "relu": (1, 1),
    "clipped_relu": (2, 2),
    "leaky_relu": (2, 2),
    "sigmoid": (3, 3),
    "tanh": (1, 3),
    "soft_relu": (3, 4),
    "gelu": (5, 9),
    "silu": (4, 6),
    "hardswish": (4, 4),
}
"""Operations per element forward and backward; a transcendental function counts as one."""


class Activation(Layer):
    """``y = f(x)`` for each element; ``ceiling`` is clipped_relu's upper bound."""

    kind: ClassVar[str] = "activation"

    function: Literal[
        "relu", "clipped_relu", "leaky_relu", "sigmoid", "tanh", "soft_relu", "gelu", "silu", "hardswish"
    ] = "relu"
    ceiling: float = 6.0
    slope: float = 0.01
    """Slope of leaky_relu below zero."""

    def output(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return OPERATIONS[self.function][phase is not Phase.FORWARD] * elements(inputs[0])

    def saved(self, *inputs: Shape) -> int:
        return elements(inputs[0])


class Dropout(Layer):
    """Zeroes each element with ``probability`` and scales the others by ``1 / (1 - probability)``."""

    kind: ClassVar[str] = "dropout"

    probability: float = 0.5
    seed: int = 0

    def model_post_init(self, context: object) -> None:
        if not 0 <= self.probability < 1:
            raise ValueError(f"probability must be at least 0 and below 1, got {self.probability}")

    def output(self, *inputs: Shape) -> Shape:
        return inputs[0]

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return (3 if phase is Phase.FORWARD else 2) * elements(inputs[0])


class Bypass(Layer):
    """A copy of the input: a lower bound of the cost of any layer."""

    kind: ClassVar[str] = "bypass"

    def output(self, *inputs: Shape) -> Shape:
        return inputs[0]
