"""One training iteration, or one inference, layer by layer: what a profiler watches.

Each layer runs forward once on what its neighbours made, then in reverse order once backward on the gradient
its readers sent; nothing is repeated and nothing is copied. Every phase runs inside a mark of its own, which
whoever watches provides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from lamina.run.loss import SeedGradient
from lamina.run.protocols import Call, Trace
from lamina.run.steps import Implement, differentiable
from lamina.spec import Phase

Mark = Callable[[int, Phase], AbstractContextManager[object]]
"""From a layer's place and a phase to the context that the phase runs in."""

SEPARABLE = ("convolution", "linear")
"""Kinds whose gradients of data and of weights come from different kernels; elsewhere one pass makes both."""

TOGETHER = "made by the same kernels as backward_data"
NOT_NEEDED = "its input needs no gradient"


class Iteration:
    """A network's iteration, to be run any number of times.

    Args:
        trace: the network.
        inputs: its input tensors.
        seed_gradient: from the network's outputs to the gradients with respect to them; asked once.
        backward: whether to train; without it nothing is kept for a backward pass.
        input_gradients: for each input, whether the gradient with respect to it is wanted too.
        implement: the method under test.
    """

    def __init__(
        self,
        trace: Trace,
        inputs: Sequence[Tensor],
        *,
        seed_gradient: SeedGradient,
        backward: bool = True,
        input_gradients: Sequence[bool] = (),
        implement: Implement | None = None,
    ):
        self.trace, self.backward = trace, backward
        self._inputs = dict(zip(trace.inputs, inputs, strict=True))
        self._seed_gradient = seed_gradient
        self._seed: Sequence[Tensor] | None = None
        self._differentiable = differentiable(trace, input_gradients)
        self._targets = [implement(c.resolved, c.module) if implement else c.module for c in trace.calls]
        self._last_reader = {n: place for place, call in enumerate(trace.calls) for n in call.inputs}

    def phases(self, place: int) -> dict[Phase, str]:
        """The phases of a layer, each with the reason why the iteration does not run it apart, or the empty text."""
        call = self.trace.calls[place]
        data = any(self._differentiable[n] for n in call.inputs)
        weights = bool(_weights(call, self._targets[place]))
        said: dict[Phase, str] = {}
        for phase in call.resolved.phases:
            if phase is Phase.FORWARD:
                said[phase] = ""
            elif self.backward and phase is Phase.BACKWARD_DATA:
                said[phase] = "" if data else NOT_NEEDED
            elif self.backward and weights:
                said[phase] = "" if _apart(call, data) else TOGETHER
        return said

    def run(self, mark: Mark) -> None:
        """Run it once."""
        values = dict(self._inputs)
        graphs: list[_Graph] = []
        for place, call in enumerate(self.trace.calls):
            graph = self._forward(place, call, values, mark)
            if self.backward:
                graphs.append(graph)
            values.update(zip(call.outputs, graph.outputs, strict=True))
            for number in (*call.inputs, *call.outputs):
                if self._last_reader.get(number, place) == place and number not in self.trace.outputs:
                    values.pop(number, None)
        if not self.backward:
            return
        gradients = self._begin({number: values[number] for number in self.trace.outputs})
        for place in reversed(range(len(self.trace.calls))):
            self._backward(place, self.trace.calls[place], graphs.pop(), gradients, mark)

    def _forward(self, place: int, call: Call, values: dict[int, Tensor], mark: Mark) -> _Graph:
        leaves = {n: values[n].detach().requires_grad_(self.backward and self._differentiable[n]) for n in call.inputs}
        with torch.set_grad_enabled(self.backward), mark(place, Phase.FORWARD):
            outputs = call.run([leaves[n] for n in call.inputs], self._targets[place])
        return _Graph(leaves, outputs)

    def _begin(self, outputs: dict[int, Tensor]) -> dict[int, Tensor]:
        real = {n: output.detach() for n, output in outputs.items() if output.is_floating_point()}
        if self._seed is None:
            self._seed = self._seed_gradient(list(real.values()))
        return dict(zip(real, self._seed, strict=True))

    def _backward(self, place: int, call: Call, graph: _Graph, gradients: dict[int, Tensor], mark: Mark) -> None:
        sent = [(out, gradients.pop(n)) for n, out in zip(call.outputs, graph.outputs, strict=True) if n in gradients]
        roots = [(out, gradient) for out, gradient in sent if out.requires_grad]
        if not roots:
            return
        data = {n: leaf for n, leaf in graph.leaves.items() if leaf.requires_grad}
        weights = _weights(call, self._targets[place])
        if weights and _apart(call, bool(data)):
            with mark(place, Phase.BACKWARD_WEIGHT):
                _gradients(roots, weights, keep=bool(data))
            weights = ()
        if data:
            with mark(place, Phase.BACKWARD_DATA):
                for number, gradient in zip(data, _gradients(roots, (*data.values(), *weights)), strict=False):
                    if gradient is not None:
                        # A tensor with several readers gets the sum of what they send.
                        gradients[number] = gradients[number] + gradient if number in gradients else gradient


class _Graph:
    """What a layer's backward pass needs: the leaves it started from and the outputs that hold its graph."""

    def __init__(self, leaves: dict[int, Tensor], outputs: tuple[Tensor, ...]):
        self.leaves, self.outputs = leaves, outputs


def _apart(call: Call, data: bool) -> bool:
    return call.resolved.layer.kind in SEPARABLE or not data


def _weights(call: Call, target: nn.Module | None) -> tuple[Tensor, ...]:
    if target is None or target is call.module:
        return call.weights
    return tuple(weight for weight in target.parameters() if weight.requires_grad)


def _gradients(
    roots: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor], keep: bool = False
) -> tuple[Tensor | None, ...]:
    outputs, gradients = zip(*roots, strict=True)
    return torch.autograd.grad(outputs, wanted, gradients, retain_graph=keep, allow_unused=True)
