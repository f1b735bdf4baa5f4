"""A whole network by a method, and what of it ran by that method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from torch import nn

from lamina import accelerate, build
from lamina.accelerate.convert import put, standard_twin
from lamina.accelerate.select import executed
from lamina.errors import UnsupportedError
from lamina.pipeline.rows import PLAN
from lamina.pipeline.targets import implementation, units
from lamina.record.wording import listed
from lamina.spec import Method, Point


@dataclass(frozen=True)
class Converted:
    """A converted copy of a network.

    Attributes:
        module: the network; the original one if the method is ``dense``.
        method: what was requested for it.
        layers: the layers that were replaced, by name.
        weighted: the number of layers with weights in the original.
        refusals: why others of these were not replaced, by name.
    """

    module: nn.Module
    method: Method
    layers: Mapping[str, nn.Module]
    weighted: int
    refusals: Mapping[str, str]

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(weight.numel() for weight in self.module.parameters() if weight.requires_grad)

    def executed(self) -> tuple[str, str]:
        """The implementation that the last step ran with how many layers, and why not with the others."""
        if self.method == Method() and not self.layers:
            return "dense", ""
        ran = {name: executed(layer, str(self.method), "step") for name, layer in self.layers.items()}
        dense = {name: reason for name, (impl, reason) in ran.items() if impl == "dense"}
        reason = shorten(_grouped({**self.refusals, **dense}), 200, placeholder="...")
        count = len({id(layer) for name, layer in self.layers.items() if name not in dense})
        name = PLAN if self.method == Method() else str(self.method)
        return (f"{name} ({count} of {self.weighted} layers)" if count else "dense"), reason


def convert_network(network: nn.Module, trace: build.Trace, method: Method) -> Converted:
    """Every layer of a network by a method, or by the method that the layer itself requests.

    Layers that a method replaces together are found in the trace. Where `accelerate.convert` does not find all of them,
    such as a function that pools, the network runs call by call as it was traced.
    """
    weighted = {name for name, layer in standard_twin(network).named_modules() if _has_weights(layer)}
    if method == Method() and not any(call.resolved.layer.method for call in trace.calls):
        return Converted(network, method, {}, len(weighted), {})
    paths = {id(layer): name for name, layer in network.named_modules()}
    calls = {paths[id(call.module)]: call for call in trace.calls if id(call.module) in paths}
    own = {name: call.resolved.layer.method for name, call in calls.items()}
    found = units(trace, method)
    for first, *others in found:  # the layers that are replaced with one have its method
        modules = (id(trace.calls[index].module) for index in others)
        own |= {paths[one]: trace.calls[first].resolved.layer.method for one in modules if one in paths}
    model = build.copied(network)
    layers: dict[str, nn.Module] = {}
    refusals: dict[str, str] = {}
    for wanted in dict.fromkeys([method, *filter(None, own.values())]):
        mine = {name for name in weighted if (own.get(name) or method) == wanted}
        if not wanted.dense:
            model, record = accelerate.convert(
                model,
                accelerate.configuration(wanted),
                lambda name, layer, wanted=wanted: (own.get(name) or method) == wanted,  # type: ignore[misc]
            )
            layers |= {one.layer: model.get_submodule(one.layer) for one in record.replaced}
            refusals |= {one.layer: str(one.refusal) for one in record.skipped if one.layer in mine}
        elif wanted != Method():
            for name in sorted(mine & calls.keys()):
                try:
                    layers[name] = build.dense(wanted, calls[name].resolved, model.get_submodule(name))
                    model = put(model, name, layers[name])
                except UnsupportedError as error:
                    refusals[name] = str(error).removeprefix(f"{wanted}: ")
    ends = [(trace.calls[unit[0]], trace.calls[unit[-1]]) for unit in found]
    if any(paths.get(id(first.module)) not in layers or _pools(last) for first, last in ends):
        return _traced(trace, method, found, len(weighted))
    return Converted(model, method, layers, len(weighted), refusals)


def _pools(call: build.Call) -> bool:
    """Whether a call is a function that pools, which a layer of the network cannot replace."""
    return call.module is None and isinstance(build.as_module(call), nn.MaxPool2d)


def _traced(trace: build.Trace, method: Method, found: Sequence[Sequence[int]], weighted: int) -> Converted:
    """The network as it was traced, with layers replaced together that its code calls one by one."""
    merged, _ = build.merged(trace, found)
    implement = implementation(Point(None, "fp32", "nchw", method))
    assert implement is not None
    uses = Counter(id(call.module) for call in trace.calls)
    layers: dict[int, nn.Module] = {}
    refusals: dict[str, str] = {}
    for index, call in enumerate(merged.calls):
        if call.module is None or (call.resolved.layer.method or method) == Method():
            continue
        try:
            if any(uses[id(part)] > 1 for part in call.module.modules()):
                raise UnsupportedError(f"{method}: it is called more than once")
            layers[index] = implement(call.resolved, call.module) or call.module
        except UnsupportedError as error:
            if any(map(_has_weights, call.module.modules())):
                refusals[call.name] = str(error).removeprefix(f"{method}: ")
    names = {merged.calls[index].name: layer for index, layer in layers.items()}
    return Converted(build.TracedNetwork(merged, layers), method, names, weighted, refusals)


def _has_weights(layer: nn.Module) -> bool:
    """Whether a layer has a matrix of its own, which scales and biases are not, nor what a module of layers holds."""
    childless = not any(True for _ in layer.children())
    return childless and any(weight.dim() > 1 for weight in layer.parameters(recurse=False))


def _grouped(reasons: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    return "; ".join(f"{listed(names, 3)}: {reason}" for reason, names in groups.items())
