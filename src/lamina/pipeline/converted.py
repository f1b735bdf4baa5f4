"""A whole network by a method, and what of it ran by that method."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten

from torch import nn

from lamina import accelerate, build
from lamina.accelerate.convert import put
from lamina.accelerate.select import executed
from lamina.errors import UnsupportedError
from lamina.record.wording import listed
from lamina.spec import Method


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
        if self.method == Method():
            return "dense", ""
        ran = {name: executed(layer, str(self.method), "step") for name, layer in self.layers.items()}
        dense = {name: reason for name, (impl, reason) in ran.items() if impl == "dense"}
        reason = shorten(_grouped({**self.refusals, **dense}), 200, placeholder="...")
        count = len(ran) - len(dense)
        return (f"{self.method} ({count} of {self.weighted} layers)" if count else "dense"), reason


def convert_network(network: nn.Module, trace: build.Trace, method: Method) -> Converted:
    """Every layer of a network by a method, or by the method that the layer itself requests."""
    weighted = {name for name, layer in network.named_modules() if _has_weights(layer)}
    if method == Method():
        return Converted(network, method, {}, len(weighted), {})
    paths = {id(layer): name for name, layer in network.named_modules()}
    calls = {paths[id(call.module)]: call for call in trace.calls if id(call.module) in paths}
    own = {name: call.resolved.layer.method for name, call in calls.items()}
    model = copy.deepcopy(network)
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
    return Converted(model, method, layers, len(weighted), refusals)


def _has_weights(layer: nn.Module) -> bool:
    """Whether a layer has a matrix of its own, which scales and biases are not."""
    return any(weight.dim() > 1 for weight in layer.parameters(recurse=False))


def _grouped(reasons: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    return "; ".join(f"{listed(names, 3)}: {reason}" for reason, names in groups.items())
