"""Sequence layers: token embedding, attention, LSTM."""

from __future__ import annotations

from typing import ClassVar

from lamina.spec.cost import Cost, Phase
from lamina.spec.layers.base import Layer, Positive, require
from lamina.spec.shape import Shape, elements

INDEX_BYTES = 8


class Embedding(Layer):
    """Row ``i`` of a trainable table for each index ``i``: ``(N, T)`` indices to ``(N, T, dim)``."""

    kind: ClassVar[str] = "embedding"
    differentiable: ClassVar[bool] = False

    vocabulary: Positive
    dim: Positive

    def output(self, *inputs: Shape) -> Shape:
        return (*inputs[0], self.dim)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"weight": (self.vocabulary, self.dim)}

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        return elements(self.output(*inputs)) if phase is Phase.BACKWARD_WEIGHT else 0

    def cost(self, phase: Phase, *inputs: Shape, itemsize: int) -> Cost:
        rows = elements(self.output(*inputs)) * itemsize
        indices = elements(inputs[0]) * INDEX_BYTES
        table = self.vocabulary * self.dim * itemsize
        written = rows if phase is Phase.FORWARD else table
        return Cost(self.operations(phase, *inputs), rows + indices, written)


class Attention(Layer):
    """``softmax(Q K^T / sqrt(d)) V`` for each head.

    Inputs: one packed ``(N, T, 3E)``, or queries, keys and values apart, each ``(N, T, E)`` (split here into
    ``heads``) or ``(N, heads, T, d)`` (already split).
    """

    kind: ClassVar[str] = "attention"
    arity: ClassVar[tuple[int, int | None]] = (1, 3)

    heads: Positive = 1
    causal: bool = False

    def output(self, *inputs: Shape) -> Shape:
        require(
            len(inputs) in (1, 3),
            "one packed input or three (queries, keys, values)",
            f"{len(inputs)} inputs",
        )
        if len(inputs) == 1:
            (x,) = inputs
            require(
                len(x) == 3 and x[2] % (3 * self.heads) == 0,
                f"(N, T, 3E) with E a multiple of {self.heads} heads",
                x,
            )
            return (x[0], x[1], x[2] // 3)
        q, k, v = inputs
        require(len(q) in (3, 4) and len(q) == len(k) == len(v), "queries, keys, values of 3 or 4 axes", q)
        require(q[-1] == k[-1], f"keys with the queries' width ({q[-1]})", k)
        require(k[:-1] == v[:-1], f"as many values as keys ({k[-2]})", v)
        require(len(q) == 4 or q[-1] % self.heads == 0, f"a width divisible by {self.heads} heads", q)
        return (*q[:-1], v[-1])

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        q, k, v = inputs if len(inputs) == 3 else ((*inputs[0][:2], inputs[0][2] // 3),) * 3
        # Two products forward (scores, result), four backward (dV, dP, dQ, dK); a causal mask is not subtracted.
        pairs = elements(q[:-1]) * k[-2]
        return 2 * pairs * (q[-1] + v[-1]) * (1 if phase is Phase.FORWARD else 2)

    def saved(self, *inputs: Shape) -> int:
        return elements(*inputs)


class LSTM(Layer):
    """Long short-term memory over ``(N, T, F)``: ``gates = x W^T + h U^T + b``; returns ``(N, T, H)``."""

    kind: ClassVar[str] = "lstm"

    hidden: Positive
    layers: Positive = 1
    bidirectional: bool = False
    bias: bool = True

    @property
    def directions(self) -> int:
        """1, or 2 if bidirectional."""
        return 2 if self.bidirectional else 1

    def output(self, *inputs: Shape) -> Shape:
        require(len(inputs[0]) == 3, "an input of 3 axes (N, T, F)", inputs[0])
        return (*inputs[0][:2], self.hidden * self.directions)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {}
        for level in range(self.layers):
            features = inputs[0][2] if level == 0 else self.hidden * self.directions
            for suffix in ("", "_reverse")[: self.directions]:
                shapes[f"weight_ih_l{level}{suffix}"] = (4 * self.hidden, features)
                shapes[f"weight_hh_l{level}{suffix}"] = (4 * self.hidden, self.hidden)
                if self.bias:
                    shapes[f"bias_ih_l{level}{suffix}"] = (4 * self.hidden,)
                    shapes[f"bias_hh_l{level}{suffix}"] = (4 * self.hidden,)
        return shapes

    def operations(self, phase: Phase, *inputs: Shape) -> int:
        steps = inputs[0][0] * inputs[0][1]
        matrices = elements(*(shape for shape in self.parameters(*inputs).values() if len(shape) == 2))
        # Elementwise per state: three sigmoids, two tanh, three products, one sum.
        gates = 0 if phase is Phase.BACKWARD_WEIGHT else 9 * self.hidden * self.directions * self.layers
        return steps * (2 * matrices + gates)

    def saved(self, *inputs: Shape) -> int:
        matrices = elements(*(shape for shape in self.parameters(*inputs).values() if len(shape) == 2))
        return matrices + 5 * self.layers * elements(self.output(*inputs))
