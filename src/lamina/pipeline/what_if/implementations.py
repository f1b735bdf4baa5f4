"""Layers by another implementation, as ``--impl`` names it: predicted by its cost model, else by the roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lamina import accelerate, build, run
from lamina.accelerate.registry import predictions_of
from lamina.accelerate.select import DENSE, LayerCall, executed, observe
from lamina.accelerate.select.cost import CostModel
from lamina.errors import LaminaError, UnsupportedError
from lamina.explain import predictions
from lamina.explain.predictions import Prediction
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.selected import Choice, Selected
from lamina.pipeline.targets import implementation, units
from lamina.pipeline.what_if.equal import module_signature, signature
from lamina.pipeline.what_if.stage import Stage
from lamina.pipeline.what_if.swaps import Part, parts_of
from lamina.record import Counter as HardwareCounter
from lamina.record import KernelRun, LayerRun, Roofs, WhatIf
from lamina.spec import Method

CHANGE = "impl"

BY_VALUES = ("sparse",)
"""Methods whose time depends on the values of the input."""


@dataclass(frozen=True)
class Candidate:
    """A call of the network, and the module that computes it by the method.

    Attributes:
        stage: the network as it is.
        method: of the module.
        index: of the call in the network's trace, in which layers that the method computes together are one.
        layers: names of the layers that it computes.
        part: the call's own module and input.
        new: the module by the method.
        call: what reaches the part, for cost models; ``None`` if it could not be observed.
    """

    stage: Stage
    method: Method
    index: int
    layers: tuple[str, ...]
    part: Part
    new: nn.Module
    call: LayerCall | None

    def predict(self, phase: str) -> Prediction:
        """The fraction of its time that stays, from the cost model of the method or from the roofline."""
        if self.method.dense:
            return self.stage.predicted(self._algorithm, self.stage.rows_of(self.layers, phase))
        values = self.index if self.method.name in BY_VALUES else None
        key = str(self.method), phase, signature(self.part), module_signature(self.new), values
        known = self.stage.known.predictions
        if key not in known:
            known[key] = self._predict(phase)
        return known[key]

    def _predict(self, phase: str) -> Prediction:
        try:
            return self._modelled(phase == WHOLE_STEP)
        except LaminaError as error:
            return self._roofline(phase, f"no cost model ({run.one_line(error).removeprefix('no cost model ')})")

    def _algorithm(
        self,
        rows: Sequence[LayerRun],
        kernels: Sequence[KernelRun],
        counters: Sequence[HardwareCounter],
        roofs: Roofs | None,
    ) -> Prediction:
        return predictions.predict_algorithm(rows, kernels, counters, roofs, self.method.algorithm or "")

    def _modelled(self, training: bool) -> Prediction:
        roofs = self.stage.base.roofs
        if roofs is None or self.call is None:
            raise UnsupportedError("the peaks of the machine or the layer's inputs are unknown")
        config = accelerate.configuration(self.method)
        # A copy: some cost models leave their constants in the layer, and it is to be timed as it is.
        model = CostModel(roofs, "graph", training)
        times = predictions_of(config)(self.part.module, build.copied(self.new), self.call, model)
        ran, _ = executed(self.new, str(self.method), "forward")
        own = {name: found.time_us for name, found in times.items() if name != DENSE}
        name = next((name for name in own if name in ran), min(own, key=lambda name: own[name]))
        dense_us = times[DENSE].time_us
        rule = f"cost model of {self.method.name}: {name} {own[name]:.3g} us for dense {dense_us:.3g} us"
        return Prediction(own[name] / dense_us, rule)

    def _roofline(self, phase: str, why: str) -> Prediction:
        """The layer keeps its fraction of the roofline, of which FLOPs and bytes tell both ends."""
        precision, roofs, step = self.stage.point.precision, self.stage.base.roofs, phase == WHOLE_STEP
        before, after = (
            predictions.predict_bound(*_work(module, self.part.x, step), roofs, precision)
            for module in (self.part.module, self.new)
        )
        if not before.us or after.us is None:
            return Prediction(None, f"{why}; {after.rule}")
        return Prediction(after.us / before.us, f"{why}: {after.rule}, dense {before.us:.3g} us")


def _work(module: nn.Module, x: Tensor, step: bool) -> tuple[int, int]:
    """FLOPs, and bytes of input, output and weights, of a forward pass or of as many passes as a step has.

    A ``Sequential`` writes and reads what is between its layers.
    """
    flops = moved = 0
    for layer in module if isinstance(module, nn.Sequential) else [module]:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            outputs = [leaf for leaf in tree_leaves(layer(x)) if isinstance(leaf, Tensor)]
        trained = any(weight.requires_grad for weight in layer.parameters())
        passes = 1 + x.requires_grad + trained if step else 1
        tensors = [x, *outputs, *layer.parameters(), *layer.buffers()]
        flops += passes * counter.get_total_flops()
        moved += passes * sum(one.numel() * one.element_size() for one in tensors)
        x = outputs[0].requires_grad_(step and (x.requires_grad or trained))
    return flops, moved


def by_method(stage: Stage, method: Method) -> Iterator[WhatIf]:
    """Every selected layer that the method supports, and the whole step with all of them.

    Each layer is compared with its own definition in float64, which for a method that approximates is not the dense
    layer's.
    """
    detail = f"dense -> {method}"
    candidates, refusals = _candidates(stage, method)
    for name, reason in refusals.items():
        if not stage.has(CHANGE, f"{detail}: {name}", stage.whole.layer):
            yield stage.refused(CHANGE, f"{detail}: {name}", reason)
    if not candidates:
        if not refusals:
            yield stage.refused(CHANGE, detail, f"{method} supports none of its layers")
        return
    stage.time_parts(CHANGE, [one.part for one in candidates], lambda _: [detail])
    for one in stage.counted(candidates):
        by_values = method.name in BY_VALUES
        yield from stage.swap(CHANGE, detail, one.part, lambda one=one: one.new, one.predict, by_values)  # type: ignore[misc]
    choices = {one.index: Choice(one.new, str(method), "") for one in candidates}
    network = replace(stage.network, trace=_merged(stage, method))
    yield from stage.swap_whole(
        CHANGE,
        f"{detail} in {len(candidates)} layers",
        lambda: Selected(network, method, choices).whole().module,
        _whole(stage, candidates),
        check=False,  # each layer was compared by itself
    )


def _merged(stage: Stage, method: Method) -> build.Trace:
    """The trace of the network in which layers that the method computes together are one."""
    return build.merged(stage.network.layers, units(stage.network.layers, method))[0]


def _candidates(stage: Stage, method: Method) -> tuple[list[Candidate], dict[str, str]]:
    """What the method can replace, and the layers with weights that it cannot, with the reasons."""
    implement = implementation(replace(stage.point, method=method))
    assert implement is not None
    paths = {id(module): name for name, module in stage.network.module.named_modules()}
    owners = Counter(id(one) for module in stage.network.module.modules() for one in module.parameters(recurse=False))
    made: list[tuple[int, tuple[str, ...], nn.Module, nn.Module, str]] = []
    refusals: dict[str, str] = {}
    for index, call in enumerate(_merged(stage, method).calls):
        layers = tuple(call.name.split(" + "))
        module = call.module
        if module is None or not stage.selects(layers) or call.resolved.layer.method is not None:
            continue
        first = module[0] if isinstance(module, nn.Sequential) and id(module) not in paths else module
        try:
            if any(owners[id(weight)] > 1 for weight in module.parameters()):
                raise UnsupportedError("its weights are shared with another layer")
            new = implement(call.resolved, module)
        except UnsupportedError as error:
            if any(weight.dim() > 1 for weight in module.parameters()):
                refusals[call.name] = str(error).removeprefix(f"{method}: ")
        else:
            if new is not None and id(first) in paths:
                made.append((index, layers, module, new, paths[id(first)]))
    names = [name for *_, name in made]
    inputs = {part.name: part.x for part in parts_of(stage.network, [(name,) for name in names])}
    with torch.set_grad_enabled(stage.network.backward):
        seen = observe(stage.network.module, names, tuple(stage.network.inputs))
    found = []
    for index, layers, module, new, name in made:
        if name in inputs:
            part = Part(layers, module, inputs[name], kept=False)
            found.append(Candidate(stage, method, index, layers, part, new, seen.get(name)))
    return found, refusals


def _whole(stage: Stage, candidates: Sequence[Candidate]) -> Prediction:
    """The step with every candidate as it is predicted alone, and the rest as it is."""
    timing = stage.whole.timing
    assert timing is not None
    phase = WHOLE_STEP if stage.network.backward else "forward"
    shares = {one.index: one.predict(phase).us for one in candidates}
    gone = 0.0
    for one in candidates:
        share = shares[one.index]
        if share is not None:
            gone += (1 - share) * sum(row.timing.median_us for row in stage.rows_of(one.layers) if row.timing)
    known = sum(share is not None for share in shares.values())
    if not known:
        return Prediction(None, "none of its layers is predicted")
    rule = f"{known} of {len(candidates)} layers as predicted one by one, the rest as it is"
    return Prediction(max(timing.median_us - gone, 0.0) / timing.median_us, rule)
