"""Several calls of a traced network as one: what a method computes by one kernel is one layer to the walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.build.calls import Call, Placeholder, Trace
from lamina.build.network import build_layer
from lamina.spec import ResolvedLayer
from lamina.spec.layers import Activation, Opaque

_FUNCTIONS = ("relu", "sigmoid", "tanh")
"""Activations without options, so that a function and its module compute the same."""
_CALL = tree_flatten(((0,), {}))[1]


def chains(trace: Trace) -> list[list[int]]:
    """Indices of calls that feed only the next one: each maps one tensor to one tensor that nothing else reads.

    Functions belong to a chain if `as_module` knows their module.
    """
    readers: dict[int, list[int]] = {}
    for index, call in enumerate(trace.calls):
        for number in set(call.inputs):
            readers.setdefault(number, []).append(index)
    found: list[list[int]] = []
    seen: set[int] = set()
    for first in range(len(trace.calls)):
        if first in seen or as_module(trace.calls[first]) is None:
            continue
        chain = [first]
        while True:
            (number,) = trace.calls[chain[-1]].outputs
            following = readers.get(number, [])
            if len(following) != 1 or number in trace.outputs or as_module(trace.calls[following[0]]) is None:
                break
            chain += following
        seen.update(chain)
        found.append(chain)
    return found


def as_module(call: Call) -> nn.Module | None:
    """The module that a call runs on its one input, or the equivalent one of a function; ``None`` for other calls."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return None
    if call.module is not None:
        return call.module if call.template == (Placeholder(0),) else None
    layer = call.resolved.layer
    if isinstance(layer, Activation) and layer.function in _FUNCTIONS:
        return build_layer(call.resolved)
    if getattr(call.target, "__name__", "") == "max_pool2d":
        (x, *arguments), options = tree_unflatten(list(call.template), call.structure)
        return nn.MaxPool2d(*arguments, **options) if x == Placeholder(0) else None
    return None


def merged(trace: Trace, units: Sequence[Sequence[int]]) -> tuple[Trace, tuple[int, ...]]:
    """The network with each unit as one call of a ``Sequential``, and the first index that each call had before.

    Args:
        trace: the network.
        units: parts of its `chains`, disjoint.
    """
    ends = {unit[-1]: unit for unit in units}
    covered = {index for unit in units for index in unit[:-1]}
    calls, indices = [], []
    for index, call in enumerate(trace.calls):
        if index not in covered:
            unit = ends.get(index)
            calls.append(_merged([trace.calls[part] for part in unit]) if unit else call)
            indices.append(unit[0] if unit else index)
    return replace(trace, calls=tuple(calls)), tuple(indices)


def _merged(calls: Sequence[Call]) -> Call:
    modules: list[Any] = [as_module(call) for call in calls]
    unit = nn.Sequential(*modules)
    layer = Opaque(
        name=" + ".join(call.name for call in calls),
        inputs=calls[0].resolved.layer.inputs,
        method=calls[0].resolved.layer.method,
        operation=" + ".join(type(module).__name__ for module in modules),
        shape=calls[-1].resolved.output,
        weights={name: tuple(weight.shape) for name, weight in unit.named_parameters()},
    )
    resolved = ResolvedLayer(layer, calls[0].resolved.inputs, calls[-1].resolved.output)
    return Call(resolved, unit, calls[0].inputs, calls[-1].outputs, (Placeholder(0),), _CALL)
