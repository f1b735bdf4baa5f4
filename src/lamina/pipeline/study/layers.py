"""The second stage: every candidate of every layer, timed in place at the settings of the whole network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lamina import accelerate, run
from lamina.accelerate.convert import select_layer, units_of
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import FITTED
from lamina.accelerate.registry import converter
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.select import DENSE, Compiler, LayerCall, Selector, decide, observe
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.apply import describe_type
from lamina.pipeline.convert import ROUNDS, selector
from lamina.pipeline.deft.composition import flattened, foldable
from lamina.pipeline.study.algorithms import convolutions, select_algorithm
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.combine import Option
from lamina.pipeline.study.config import StudyConfig
from lamina.pipeline.study.fatal import Fatal
from lamina.pipeline.study.folded import fold_impl, fold_times
from lamina.pipeline.study.layer_times import layer_times, quick
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.watch import Stage, Watch
from lamina.record import Selection, Timing
from lamina.record.study import Settings, Trial
from lamina.spec import Method
from lamina.spec.layer_names import matching_layers

OVER = "the time budget of this stage was spent"

TILES = 2
"""Tiles of a kernel that are tried; layers of the plan are tuned again on what reaches them there."""

AHEAD = ("circulant", "eliminated", "fused", "weight-only")
"""Methods whose operators run whatever their kernels have written: without a launch that is anything."""

AHEAD_PART = 0.3
"""Of the time that the stage has left: what compiling ahead may take."""

HOPELESS = 1.25
"""Time over the dense layer's from which on no further variant of a method is tried."""

SPARSE_BELOW = {"fp32": 0.6, "tf32": 0.3, "bf16": 0.2, "fp16": 0.2}
"""Density of inputs above which no sparse product is tried on a GPU: `benchmarks.sparse_gemm` has what pays."""


@dataclass
class Layers:
    """What was found about the layers of a network.

    Attributes:
        trials: every candidate.
        dense_us: the step of each layer with weights, in microseconds.
        faster: by layer, the candidates that are faster than dense: what each saves, in microseconds.
        parts: by ``layer impl``, the time over the dense one of each layer that a candidate changes, where others than
            its own change.
        merged: the names of all layers that a candidate replaces together, by the name of the first.
        unsupported: why layers have no candidates.
        density: the fraction of a layer's inputs that is not zero.
    """

    trials: list[Trial] = field(default_factory=list)
    dense_us: dict[str, float] = field(default_factory=dict)
    faster: dict[str, dict[str, float]] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    density: dict[str, float] = field(default_factory=dict)

    def option(self, layer: str, impl: str) -> Option:
        """A faster candidate with what it saves; what it damages is not known here."""
        saved = self.faster[layer][impl]
        return Option(impl, saved, 0.0, self.parts.get(f"{layer} {impl}", {layer: 1 - saved / self.dense_us[layer]}))


def try_layers(
    subject: Subject,
    config: StudyConfig,
    settings: Settings,
    cache: Path,
    budget: Budget,
    fatal: Fatal,
    tried: Callable[[Trial], object],
    watch: Watch,
) -> Layers:
    """Time each method on each layer that it supports, the slowest layers first, and all layers before more variants.

    Args:
        subject: the network.
        config: the methods and the layers.
        settings: of the network.
        cache: folder of selections: what was timed before on this machine is not timed again.
        budget: time; layers that it does not reach keep their dense module.
        fatal: watches over each method on each layer.
        tried: receives each candidate as it is timed.
        watch: receives the progress.
    """
    found = Layers()
    model = subject.at(subject.start(settings), settings)
    chosen = selector(subject.device, subject.layer_mode(settings), subject.training, cache)
    chosen.max_tiles = TILES
    with subject.context(settings):
        units = _units(model, config, settings)
        names = {name for unit in units for name in unit.names}
        inputs = subject.inputs(settings)
        example = inputs if isinstance(inputs, tuple) else (inputs,)
        with torch.set_grad_enabled(subject.training):
            calls = observe(model, names, example)
        found.density = {name: _density(call) for name, call in calls.items()}
        found.dense_us = layer_times(model, names, calls, quick(subject, settings))
        units.sort(key=lambda unit: (unit.rank, -sum(found.dense_us.get(name, 0.0) for name in unit.names)))
        groups = fold_groups(model)
        timed: set[str] = set()
        rank, reached = -1, dict[tuple[str, str], float]()
        for index, unit in enumerate(units):
            if unit.rank != rank and subject.device.type == "cuda":
                rank = unit.rank
                next_ones = [one for one in units if one.rank == rank and not _hopeless(one, reached)]
                _compile(next_ones, calls, chosen, settings, budget, fatal, watch)
            watch(Stage(f"trying {unit.method} on {unit.names[0]}", index, len(units)))
            what = f"{unit.names[0]}, {unit.method}"
            if unit.refusal is None:
                reason = fatal.reason(what) or _too_dense(unit, found.density, settings, subject.device)
                reason = reason or _hopeless(unit, reached)
                unit = replace(unit, refusal=reason)
            with fatal(what, "the layers") if unit.refusal is None else nullcontext():
                rows = _trials(unit, calls, chosen, settings, budget)
            if groups is not None and unit.method.name == "eliminated" and unit.refusal is None and not budget.over:
                rows.append(_folded(unit, model, calls, chosen, settings, groups, example, found))
            if (ratio := _best(rows)) > 0:
                reached[unit.names[0], unit.method.name] = ratio
            for trial, saved in rows:
                if trial.impl == DENSE and (unit.several or trial.layer in timed):
                    continue  # of layers that are replaced together, or known from another method
                if trial.impl == DENSE and trial.timing is not None:
                    timed.add(trial.layer)
                    found.dense_us[trial.layer] = trial.timing.median_us
                found.trials.append(trial)
                tried(trial)
                if trial.outcome == "selected":
                    found.faster.setdefault(trial.layer, {})[trial.impl] = saved
                    found.merged[f"{trial.layer} {trial.impl}"] = unit.names
        watch(Stage("trying every method on every layer", len(units), len(units)))
    found.unsupported = _unsupported(found)
    return found


@dataclass(frozen=True)
class _Unit:
    """A method on the layers that it replaces together; ``module`` and ``stays`` as in `accelerate.convert.Unit`.

    ``rank`` counts the variants of a method, such as its keep ratios: the first of every method is tried on all layers
    before the second of any, so that little time reaches every layer.
    """

    method: Method
    names: tuple[str, ...]
    module: nn.Module
    refusal: str | None
    stays: nn.Module | None
    rank: int = 0

    @property
    def several(self) -> bool:
        """Whether it computes more than one layer."""
        return isinstance(self.module, nn.Sequential)


def _units(model: nn.Module, config: StudyConfig, settings: Settings) -> list[_Unit]:
    leaves = {name: module for name, module in model.named_modules() if not any(True for _ in module.children())}
    allowed = set(matching_layers(config.layers, leaves))
    found = []
    ranks: Counter[str] = Counter()
    for method in config.offers():
        rank = ranks[method.name]
        ranks[method.name] += 1
        if method.dense:
            for name, module, refusal in convolutions(model, method, settings):
                if name in allowed:
                    found.append(_Unit(method, (name,), module, refusal, None, rank))
            continue
        for unit in units_of(model, accelerate.configuration(method)):
            weights = any(one.dim() > 1 for module in unit.layers.values() for one in module.parameters())
            if weights and unit.names[0] in allowed:
                found.append(_Unit(method, unit.names, unit.module, unit.refusal, unit.stays, rank))
    return found


def _too_dense(unit: _Unit, density: Mapping[str, float], settings: Settings, device: torch.device) -> str | None:
    """Why a sparse product is not worth a trial, or nothing."""
    found, limit = density.get(unit.names[0]), SPARSE_BELOW.get(settings.precision, 1.0)
    if unit.method.name != "sparse" or device.type != "cuda" or found is None or found <= limit:
        return None
    return f"{found:.0%} of its inputs are not zero; sparse products in {settings.precision} need {limit:.0%} or less"


def _density(call: LayerCall) -> float:
    """Of what a layer reads, the fraction that is not zero."""
    sizes = [one.numel() for one in call.tensors]
    return sum(int(one.count_nonzero()) for one in call.tensors) / max(1, sum(sizes))


def _compile(
    units: Sequence[_Unit],
    calls: Mapping[str, LayerCall],
    chosen: Selector,
    settings: Settings,
    budget: Budget,
    fatal: Fatal,
    watch: Watch,
) -> None:
    """Compile the kernels of candidates together, before the first of them is timed.

    Those that a part of the stage's time does not reach compile when they are timed.
    """
    with budget.part(AHEAD_PART), compile_ahead():
        for index, unit in enumerate(units):
            watch(Stage("compiling kernels", index, len(units)))
            what = f"{unit.names[0]}, {unit.method}"
            if budget.over:
                break
            if unit.refusal is None and unit.method.name in AHEAD and fatal.reason(what) is None:
                with fatal(what, "the layers"):
                    _trials(unit, calls, Compiler(chosen), settings, budget)


def _hopeless(unit: _Unit, reached: Mapping[tuple[str, str], float]) -> str | None:
    """Why a further variant of a method is not worth a trial, or nothing."""
    ratio = reached.get((unit.names[0], unit.method.name), 0.0)
    if ratio <= HOPELESS or unit.method.dense:
        return None
    return f"the variant of {unit.method.name} before it took {ratio:.1f} times as long as the dense layer"


def _best(rows: Sequence[tuple[Trial, float]]) -> float:
    """The time of the fastest candidate over the dense one; 0 if none was timed."""
    ratios = [
        one.timing.median_us / one.dense_us
        for one, _ in rows
        if one.impl != DENSE and one.timing is not None and one.dense_us
    ]
    return min(ratios, default=0.0)


def _trials(
    unit: _Unit,
    calls: Mapping[str, LayerCall],
    chosen: Selector,
    settings: Settings,
    budget: Budget,
) -> list[tuple[Trial, float]]:
    """The candidates of one method on one layer; the fastest is ``selected`` if it is faster than dense.

    With each goes the time that it saves, in microseconds.
    """
    kind = " + ".join(map(describe_type, unit.module if isinstance(unit.module, nn.Sequential) else [unit.module]))
    one = Trial(unit.names[0], kind, str(unit.method), settings)
    if unit.refusal is not None:
        return [(replace(one, outcome="refused", reason=unit.refusal), 0.0)]
    if budget.over:
        return [(replace(one, outcome="failed", reason=OVER), 0.0)]
    try:
        selection = _selected(unit, chosen, calls.get(unit.names[0]))
    except UnsupportedError as error:
        return [(replace(one, outcome="refused", reason=str(error)), 0.0)]
    except (UsageError, RuntimeError) as error:
        return [(replace(one, outcome="failed", reason=run.one_line(error)), 0.0)]
    dense_us = selection.times_us[DENSE]
    found = []
    for impl, time_us in selection.times_us.items():
        quartiles = selection.quartiles_us.get(impl, (time_us, time_us))
        timing = Timing(CLOCKS[selection.mode], "warm", time_us, *quartiles, ROUNDS)
        faster = impl == selection.impl and impl != DENSE
        reason = _named(selection.reason, unit)
        trial = replace(one, impl=_named(impl, unit), timing=timing, dense_us=dense_us, reason=reason)
        found.append((replace(trial, outcome="selected") if faster else trial, dense_us - time_us))
    for impl, why in selection.refusals.items():
        found.append((replace(one, impl=_named(impl, unit), outcome="refused", reason=why), 0.0))
    return found


def _selected(unit: _Unit, chosen: Selector, call: LayerCall | None) -> Selection:
    """The times of a unit's module and of its candidates.

    Raises:
        UnsupportedError, UsageError: as `select_layer` does.
    """
    if unit.method.dense:
        return select_algorithm(unit.module, unit.method, chosen, call)
    config = _unfitted(accelerate.configuration(unit.method))
    quick = config
    if isinstance(config, Eliminated) and config.keep is not None:  # which inputs are kept takes no part in the time
        quick = replace(config, select="even")
    new = converter(quick).replace(unit.module, quick)
    return select_layer(unit.module, new, config, chosen, call, unit.stays)[0]


def _unfitted(config: Any) -> Any:
    """A configuration that needs no calibration data: what fits the weights takes no time in a step."""
    fitted = isinstance(config, Eliminated) and config.recovery in FITTED
    return replace(config, recovery="scale") if fitted else config


def _folded(
    unit: _Unit,
    model: nn.Module,
    calls: Mapping[str, LayerCall],
    chosen: Selector,
    settings: Settings,
    groups: Mapping[str, int],
    example: tuple[torch.Tensor, ...],
    found: Layers,
) -> tuple[Trial, float]:
    """The layer with its producer, without the channels that the layer does not read."""
    name = unit.names[0]
    group = groups.get(name, 1)
    impl = fold_impl(unit.method, group)
    one = Trial(name, describe_type(model.get_submodule(name)), impl, settings)
    config = _unfitted(accelerate.configuration(unit.method))
    try:
        dense, ours, parts = fold_times(model, name, config, group, calls, example, chosen)
    except (UnsupportedError, UsageError, RuntimeError) as error:
        return replace(one, outcome="refused", reason=run.one_line(error)), 0.0
    found.parts[f"{name} {impl}"] = parts
    verdict = decide({DENSE: dense, impl: ours}, chosen.mode)
    outcome = "selected" if verdict.impl == impl else "slower"
    reason = f"with its producer, {verdict.reason}"
    timed = replace(one, timing=ours, dense_us=dense.median_us, outcome=outcome, reason=reason)  # type: ignore[arg-type]
    return timed, dense.median_us - ours.median_us


def fold_groups(model: nn.Module) -> dict[str, int] | None:
    """Neighbouring inputs of each layer that are one channel of its producer; ``None`` if no producer can be pruned."""
    return None if foldable(model) else flattened(model)


CLOCKS = {"eager": "wall", "compiled": "wall", "graph": "graph"}


def _named(text: str, unit: _Unit) -> str:
    """A text in which implementations have the recovery that they will have in the network."""
    requested = dict(unit.method.options).get("recovery")
    return text if requested is None else text.replace("recovery=scale", f"recovery={requested}")


def _unsupported(found: Layers) -> dict[str, str]:
    """Layers of which no method has a candidate that ran, with every reason."""
    ran = {one.layer for one in found.trials if one.timing is not None}
    reasons: dict[str, dict[str, None]] = {}
    for one in found.trials:
        if one.layer not in ran and one.reason:
            reasons.setdefault(one.layer, {})[f"{Method.parse(one.impl).name}: {one.reason}"] = None
    return {layer: "; ".join(said) for layer, said in reasons.items()}
