"""Layers that join several inputs, or only rename the shape of one."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, require
from lamina.spec.shape import Shape, elements, show


class Add(Layer):
    """``y = a + b + ...``: the residual connection; inputs broadcast like PyTorch's."""

    kind: ClassVar[str] = "add"
    arity: ClassVar[tuple[int, int | None]] = (2, None)

    def output(self, *inputs: Shape) -> Shape:
        return broadcast_shapes(*inputs)

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        # The gradient passes through unchanged, unless a broadcast input has to sum it.
        broadcast = any(shape != self.output(*inputs) for shape in inputs)
        return super().phases(*inputs) if broadcast else (Phase.FORWARD,)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return (len(inputs) - 1) * elements(self.output(*inputs)) if phase is Phase.FORWARD else 0


class Multiply(Layer):
    """``y = a * b * ...``: gates and scales; inputs broadcast like PyTorch's."""

    kind: ClassVar[str] = "multiply"
    arity: ClassVar[tuple[int, int | None]] = (2, None)

    def output(self, *inputs: Shape) -> Shape:
        return broadcast_shapes(*inputs)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return (len(inputs) - 1) * elements(self.output(*inputs)) * (1 if phase is Phase.FORWARD else len(inputs))

    def saved(self, *inputs: Shape) -> int:
        return elements(*inputs)


class Concat(Layer):
    """Inputs one after the other along ``axis``."""

    kind: ClassVar[str] = "concat"
    arity: ClassVar[tuple[int, int | None]] = (1, None)

    axis: int = 1

    def output(self, *inputs: Shape) -> Shape:
        first, axis = inputs[0], self.axis % max(len(inputs[0]), 1)
        require(-len(first) <= self.axis < len(first), f"an axis below {len(first)}", self.axis)
        for other in inputs[1:]:
            same = len(other) == len(first) and all(
                a == b for i, (a, b) in enumerate(zip(first, other, strict=True)) if i != axis
            )
            require(same, f"inputs equal to {show(first)} but for axis {axis}", other)
        return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])


class Flatten(Layer):
    """Everything from axis ``start`` on as one axis."""

    kind: ClassVar[str] = "flatten"
    view: ClassVar[bool] = True

    start: int = 1

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        require(0 <= self.start < len(x), f"start below {len(x)}", self.start)
        return (*x[: self.start], prod(x[self.start :]))


class Transpose(Layer):
    """Axes ``first`` and ``second`` exchanged, as when frames ``(N, T, F)`` become channels ``(N, F, T)``."""

    kind: ClassVar[str] = "transpose"
    view: ClassVar[bool] = True

    first: int = 1
    second: int = 2

    def output(self, *inputs: Shape) -> Shape:
        sizes = list(inputs[0])
        require(max(self.first, self.second) < len(sizes), f"axes below {len(sizes)}", (self.first, self.second))
        sizes[self.first], sizes[self.second] = sizes[self.second], sizes[self.first]
        return tuple(sizes)


class Opaque(Layer):
    """A layer lamina has no formula for: known by what a trace saw of it."""

    kind: ClassVar[str] = "opaque"
    arity: ClassVar[tuple[int, int | None]] = (0, None)
    counted: ClassVar[bool] = False

    operation: str
    """The module class or function, for people."""
    shape: Shape
    weights: dict[str, Shape] = {}
    alias: bool = False
    """Whether the result shares the input's memory."""

    def output(self, *inputs: Shape) -> Shape:
        return self.shape

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        return () if self.alias else super().phases(*inputs)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return self.weights


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape of tensors that combine element by element, or ``ValueError``."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = []
    for sizes_of_axis in zip(*padded, strict=True):
        wide = {size for size in sizes_of_axis if size != 1} or {1}
        require(len(wide) == 1, "inputs of one shape", " and ".join(map(show, shapes)))
        sizes.append(wide.pop())
    return tuple(sizes)
