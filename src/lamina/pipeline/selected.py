"""Each layer of a traced network by a method or dense, whichever is faster: the selection of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import nn

from lamina import accelerate, build, run
from lamina.accelerate.convert import put, select_layer
from lamina.accelerate.registry import converter
from lamina.accelerate.select import DENSE, LayerCall, Selector, executed, observe
from lamina.accelerate.select.cost import CostModel
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.convert import cost_model, selector
from lamina.pipeline.converted import Converted
from lamina.pipeline.guard import Guard
from lamina.pipeline.prepared import Prepared
from lamina.record import Mode
from lamina.spec import Method, ResolvedLayer

How = Literal["none", "measure", "model"]
"""How to select: not at all, by measuring, or by the method's cost model."""


@dataclass(frozen=True)
class Choice:
    """What was selected for a call: the module that computes it (``None``: a function), the implementation, and why."""

    module: nn.Module | None
    impl: str
    reason: str

    def executed(self, phase: str) -> tuple[str, str]:
        """The implementation that computed a phase, and the reason."""
        if self.impl == DENSE or self.module is None:
            return DENSE, self.reason
        impl, reason = executed(self.module, self.impl, phase)
        return (DENSE, reason) if impl == DENSE else (self.impl, self.reason)


@dataclass(frozen=True)
class Selected:
    """What was selected for the calls of a network, by their index in ``network.trace``.

    Calls that are not measured, or whose own method is dense, have no choice.
    """

    network: Prepared
    method: Method
    choices: Mapping[int, Choice]

    def implement(self, otherwise: run.Implement | None) -> run.Implement:
        """The module of each layer: the selected one, or that of ``otherwise``."""
        index_of = {id(call.resolved): index for index, call in enumerate(self.network.trace.calls)}

        def implement(layer: ResolvedLayer, module: nn.Module | None) -> nn.Module | None:
            choice = self.choices.get(index_of[id(layer)])
            if choice is not None:
                return choice.module
            return module if otherwise is None else otherwise(layer, module)

        return implement

    def whole(self) -> Converted:
        """The network with every selected layer in place."""
        calls = self.network.trace.calls
        paths = {id(module): name for name, module in self.network.module.named_modules()}
        chosen = {
            index: choice.module
            for index, choice in self.choices.items()
            if choice.impl != DENSE and choice.module is not None
        }
        if any(id(calls[index].module) not in paths for index in chosen):
            model: nn.Module = build.TracedNetwork(cast(build.Trace, self.network.trace), chosen)
        else:
            model = build.copied(self.network.module)
            for index, module in chosen.items():
                model = put(model, paths[id(calls[index].module)], module)
        weighted = {index for index, call in enumerate(calls) if _has_matrix(call.module)}
        layers = {calls[index].resolved.name: module for index, module in chosen.items()}
        kept = {
            calls[index].resolved.name: choice.reason
            for index, choice in self.choices.items()
            if index in weighted and index not in chosen
        }
        return Converted(model, self.method, layers, len(weighted), kept)


def select_layers(
    network: Prepared,
    method: Method,
    how: How,
    mode: Mode,
    device: torch.device,
    cache: Path,
    guard: Guard,
) -> Selected:
    """Select for each call, on what reaches it in the network; what its method cannot replace stays dense.

    Args:
        network: at one point of a workload's grid; its phases say whether steps have a backward pass.
        method: of the point; a layer's own method goes before it.
        how: ``measure`` or ``model``.
        mode: to select for.
        device: of the network.
        cache: a folder for selections and the machine's peaks.
        guard: watches over each layer; those that must not run get no choice.

    Raises:
        DeviceLostError: a layer made the GPU unusable.
    """
    make = cost_model if how == "model" else selector
    chosen: Selector | CostModel = make(device, mode, network.backward, cache)
    measured = network.selected - guard.lost.keys()
    wanted = {
        index: (call.module, call.resolved.layer.method or method)
        for index, call in enumerate(network.trace.calls)
        if not (call.resolved.layer.method or method).dense and call.resolved.name in measured
    }
    paths = {id(module): name for name, module in network.module.named_modules()}
    names = {
        index: paths[id(_first(module, paths))]
        for index, (module, _) in wanted.items()
        if module is not None and id(_first(module, paths)) in paths
    }
    with torch.set_grad_enabled(network.backward):
        calls = observe(network.module, {*names.values()}, tuple(network.inputs))
    choices = {}
    for index, (module, own) in wanted.items():
        merged = module is not None and id(module) not in paths
        try:
            if module is None or index not in names:
                raise UnsupportedError("a function, no module of the network")
            with guard(network.trace.calls[index].resolved.name, "selecting"):
                call = calls.get(names[index])
                choices[index] = (_of_merged if merged else _of_module)(module, own, chosen, call)
        except UnsupportedError as error:
            choices[index] = Choice(module, DENSE, run.one_line(error))
        except UsageError:
            continue  # the dense layer does not run, or it cannot be converted: the walk reports it
    return Selected(network, method, choices)


def _of_module(module: nn.Module, method: Method, chosen: Selector | CostModel, call: LayerCall | None) -> Choice:
    """What is selected for a module, or for the layers in it."""
    if call is None:
        raise UnsupportedError("the example did not reach it")
    config = accelerate.configuration(method)
    new, record = accelerate.convert(build.copied(module), config, example=call, selector=chosen)
    if not record.replaced:
        refusals = (_without_impl(str(one.refusal), DENSE) for one in record.skipped)
        raise UnsupportedError("; ".join(dict.fromkeys(refusals)))
    impls = {one.selection.impl: one.selection.reason for one in record.replaced if one.selection is not None}
    reason = "; ".join(_without_impl(reason, impl) for impl, reason in impls.items())
    return Choice(new, str(method) if len(impls) > 1 else next(iter(impls)), reason)


def _of_merged(unit: nn.Module, method: Method, chosen: Selector | CostModel, call: LayerCall | None) -> Choice:
    """What is selected for layers that the method replaces together."""
    config = accelerate.configuration(method)
    new = converter(config).replace(build.copied(unit), config)
    selection, module = select_layer(unit, new, config, chosen, call)
    return Choice(module, selection.impl, _without_impl(selection.reason, selection.impl))


def _without_impl(reason: str, impl: str) -> str:
    return reason.removeprefix(f"{impl}: ")


def _first(module: nn.Module, paths: Mapping[int, str]) -> nn.Module:
    """The module itself, or the first of those that were merged."""
    return module[0] if isinstance(module, nn.Sequential) and id(module) not in paths else module


def _has_matrix(module: nn.Module | None) -> bool:
    return module is not None and any(weight.dim() > 1 for weight in module.parameters())
