"""One training iteration or inference, layer by layer, as a profiler records it.

Each layer runs forward once on the outputs of its producers, then, in reverse order, backward once on the gradients of
its consumers. Nothing is repeated or copied. Every phase runs inside its own context manager, provided by the caller.
A layer that keeps tensors for its next call starts every iteration with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lamina.run.loss import SeedGradient, has_gradient
from lamina.run.protocols import Call, Trace
from lamina.run.steps import Implement, differentiable, random_values
from lamina.spec import Phase

Mark = Callable[[int, Phase], AbstractContextManager[object]]
"""Maps a layer index and a phase to the context manager in which the phase runs."""

SEPARABLE = ("convolution", "linear")
"""Layer kinds whose data and weight gradients are computed by separate kernels; others compute both in one pass."""

OWN = frozenset(vars(nn.Module()))
"""Attributes of every module."""

MERGED = "computed by the same kernels as backward_data"
NOT_NEEDED = "its input needs no gradient"


class Iteration:
    """An iteration of a network that can be run repeatedly.

    Args:
        trace: the network.
        inputs: its input tensors.
        seed_gradient: maps the network's outputs to the gradients with respect to them; called once.
        backward: whether to run the backward pass; if not, nothing is saved for it.
        input_gradients: for each input, whether to compute the gradient with respect to it.
        implement: the method under test.
        lost: layers that must not run, and why: their consumers get random values, their producers random gradients.
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
        lost: Mapping[str, str] = MappingProxyType({}),
    ):
        self.trace, self.backward, self.lost = trace, backward, lost
        self._inputs = dict(zip(trace.inputs, inputs, strict=True))
        self._device = inputs[0].device if inputs else torch.device("cpu")
        self._seed_gradient = seed_gradient
        self._seed: Sequence[Tensor] | None = None
        self._differentiable = differentiable(trace, input_gradients)
        self._targets = [implement(c.resolved, c.module) if implement else c.module for c in trace.calls]
        self._last_reader = {n: index for index, call in enumerate(trace.calls) for n in call.inputs}
        layers = {module for call in trace.calls if call.module is not None for module in call.module.modules()}
        holders = (holder for module in layers for holder in (vars(module), module._buffers))
        self._kept = [(holder, _cut(holder)) for holder in holders if isinstance(holder, dict)]  # not TorchScript's

    def target(self, index: int) -> nn.Module | None:
        """The module that computes a layer, ``None`` for a function."""
        return self._targets[index]

    def phases(self, index: int) -> dict[Phase, str]:
        """The phases of a layer, each with the reason why it does not run separately; empty if it does."""
        call = self.trace.calls[index]
        data = any(self._differentiable[n] for n in call.inputs)
        weights = bool(_weights(call, self._targets[index]))
        reasons: dict[Phase, str] = {}
        for phase in call.resolved.phases:
            if phase is Phase.FORWARD:
                reasons[phase] = ""
            elif self.backward and phase is Phase.BACKWARD_DATA:
                reasons[phase] = "" if data else NOT_NEEDED
            elif self.backward and weights:
                reasons[phase] = "" if _separate(call, data) else MERGED
        return reasons

    def run(self, mark: Mark) -> None:
        """Run one iteration."""
        for holder, before in self._kept:
            holder.update(before)
        values = dict(self._inputs)
        graphs: list[_Graph] = []
        for index, call in enumerate(self.trace.calls):
            graph = self._forward(index, call, values, mark)
            if self.backward:
                graphs.append(graph)
            values.update(zip(call.outputs, graph.outputs, strict=True))
            for number in (*call.inputs, *call.outputs):
                if self._last_reader.get(number, index) == index and number not in self.trace.outputs:
                    values.pop(number, None)
        if not self.backward:
            return
        gradients = self._begin({number: values[number] for number in self.trace.outputs})
        for index in reversed(range(len(self.trace.calls))):
            self._backward(index, self.trace.calls[index], graphs.pop(), gradients, mark)

    def _forward(self, index: int, call: Call, values: dict[int, Tensor], mark: Mark) -> _Graph:
        leaves = {n: values[n].detach().requires_grad_(self.backward and self._differentiable[n]) for n in call.inputs}
        if call.name in self.lost:
            device = next((leaf.device for leaf in leaves.values()), self._device)
            return _Graph(leaves, tuple(random_values(self.trace.slots[n], device) for n in call.outputs))
        with torch.set_grad_enabled(self.backward), mark(index, Phase.FORWARD):
            outputs = call.run([leaves[n] for n in call.inputs], self._targets[index])
        return _Graph(leaves, outputs)

    def _begin(self, outputs: dict[int, Tensor]) -> dict[int, Tensor]:
        real = {n: output.detach() for n, output in outputs.items() if has_gradient(output.dtype)}
        if self._seed is None:
            self._seed = self._seed_gradient(list(real.values()))
        return dict(zip(real, self._seed, strict=True))

    def _backward(self, index: int, call: Call, graph: _Graph, gradients: dict[int, Tensor], mark: Mark) -> None:
        sent = [(out, gradients.pop(n)) for n, out in zip(call.outputs, graph.outputs, strict=True) if n in gradients]
        if call.name in self.lost:
            for number, leaf in graph.leaves.items():
                if leaf.requires_grad:
                    gradients.setdefault(number, random_values(self.trace.slots[number], leaf.device))
            return
        roots = [(out, gradient) for out, gradient in sent if out.requires_grad]
        if not roots:
            return
        data = {n: leaf for n, leaf in graph.leaves.items() if leaf.requires_grad}
        weights = _weights(call, self._targets[index])
        if weights and _separate(call, bool(data)):
            with mark(index, Phase.BACKWARD_WEIGHT):
                _gradients(roots, weights, keep=bool(data))
            weights = ()
        if data:
            with mark(index, Phase.BACKWARD_DATA):
                for number, gradient in zip(data, _gradients(roots, (*data.values(), *weights)), strict=False):
                    if gradient is not None:
                        # Gradients from several consumers are summed.
                        gradients[number] = gradients[number] + gradient if number in gradients else gradient


class _Graph:
    """The leaves of a layer's forward pass and its outputs, which own the autograd graph."""

    def __init__(self, leaves: dict[int, Tensor], outputs: tuple[Tensor, ...]):
        self.leaves, self.outputs = leaves, outputs


def _cut(holder: Mapping[str, Any]) -> dict[str, Any]:
    """What a layer holds, cut from the autograd graph of the call that left it, which is freed by now."""

    def linked(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.grad_fn is not None

    def cut(value: Any) -> Any:
        if not any(map(linked, tree_leaves(value))):
            return value
        return tree_map(lambda leaf: leaf.detach() if linked(leaf) else leaf, value)

    return {name: cut(value) for name, value in holder.items() if name not in OWN}


def _separate(call: Call, data: bool) -> bool:
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
