"""Layers with several inputs, and layers that only change the shape of one."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from lamina.spec.cost import Phase
from lamina.spec.layers.base import Layer, require
from lamina.spec.shape import Shape, elements, show


class Add(Layer):
    """``y = a + b + ...``, such as a residual connection; inputs broadcast as in PyTorch."""

    kind: ClassVar[str] = "add"
    arity: ClassVar[tuple[int, int | None]] = (2, None)

    def output(self, *inputs: Shape) -> Shape:
        return broadcast_shapes(*inputs)

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        # The gradient is passed through unchanged, unless it must be summed for a broadcast input.
        broadcast = any(shape != self.output(*inputs) for shape in inputs)
        return super().phases(*inputs) if broadcast else (Phase.FORWARD,)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return (len(inputs) - 1) * elements(self.output(*inputs)) if phase is Phase.FORWARD else 0


class Multiply(Layer):
    """``y = a * b * ...``, such as gates and scales; inputs broadcast as in PyTorch."""

    kind: ClassVar[str] = "multiply"
    arity: ClassVar[tuple[int, int | None]] = (2, None)

    def output(self, *inputs: Shape) -> Shape:
        return broadcast_shapes(*inputs)

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return (len(inputs) - 1) * elements(self.output(*inputs)) * (1 if phase is Phase.FORWARD else len(inputs))

    def saved(self, *inputs: Shape) -> int:
        return elements(*inputs)


class Concat(Layer):
    """Concatenation of the inputs along ``axis``."""

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
            require(same, f"inputs equal to {show(first)} except in axis {axis}", other)
        return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])


class Flatten(Layer):
    """Flattens the axes from ``start`` on to one."""

    kind: ClassVar[str] = "flatten"
    view: ClassVar[bool] = True

    start: int = 1

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        require(0 <= self.start < len(x), f"start below {len(x)}", self.start)
        return (*x[: self.start], prod(x[self.start :]))


class Transpose(Layer):
    """Transposes axes ``first`` and ``second``, for example frames ``(N, T, F)`` to channels ``(N, F, T)``."""

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
    """A traced layer without a cost formula."""

    kind: ClassVar[str] = "opaque"
    arity: ClassVar[tuple[int, int | None]] = (0, None)
    operation: str
    """The name of the module class or function."""
    shape: Shape
    weights: dict[str, Shape] = {}
    alias: bool = False
    """Whether the output shares the input's memory."""
    flops: tuple[int, int, int] | None = None
    """Of the forward, backward data and backward weight phase, by PyTorch's counter; ``None`` where it has no formula.
    """

    @property
    def counted(self) -> bool:
        return self.flops is not None

    def output(self, *inputs: Shape) -> Shape:
        return self.shape

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return self.flops[tuple(Phase).index(phase)] if self.flops else 0

    def phases(self, *inputs: Shape) -> tuple[Phase, ...]:
        return () if self.alias else super().phases(*inputs)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return self.weights


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The broadcast shape of the inputs, or ``ValueError``."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = []
    for sizes_of_axis in zip(*padded, strict=True):
        wide = {size for size in sizes_of_axis if size != 1} or {1}
        require(len(wide) == 1, "inputs of one shape", " and ".join(map(show, shapes)))
        sizes.append(wide.pop())
    return tuple(sizes)
