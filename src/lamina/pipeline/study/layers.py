"""The second stage: every candidate of every layer, timed in place at the settings of the whole network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby

from lamina.accelerate.convert import standard
from lamina.accelerate.select import DENSE
from lamina.pipeline.convert import selector
from lamina.pipeline.study.ahead import compile_kernels
from lamina.pipeline.study.attempts import Attempt, Ratios, attempts_on, hopeless, ratio_to_dense, too_dense
from lamina.pipeline.study.combine import Option
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.layer_times import layer_times, quick
from lamina.pipeline.study.observed import Observed, density, observe_layers
from lamina.pipeline.study.trials import folded_trial, trials_of
from lamina.pipeline.watch import Stage
from lamina.record.study import Settings, Trial
from lamina.spec import Method

TILES = 2
"""Tiles of a kernel that are tried; layers of the plan are tuned again on what reaches them there."""


@dataclass
class Layers:
    """What was found about the layers of a network.

    Attributes:
        trials: every candidate.
        dense_us: the step of each layer with weights, in microseconds.
        faster: by layer, the candidates that are faster than dense: what each saves, in microseconds.
        parts: by ``layer impl``, the time over the dense one of each layer that a candidate changes, where others than
            its own change.
        merged: the names of all layers that a candidate replaces together, by ``layer impl``.
        density: the fraction of a layer's inputs that is not zero.
    """

    trials: list[Trial] = field(default_factory=list)
    dense_us: dict[str, float] = field(default_factory=dict)
    faster: dict[str, dict[str, float]] = field(default_factory=dict)
    merged: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    density: dict[str, float] = field(default_factory=dict)
    _timed: set[str] = field(default_factory=set)

    def add(self, trial: Trial, attempt: Attempt) -> bool:
        """Keep a candidate of an attempt, and tell whether it is kept.

        Dense layers are not if they are replaced together, or known from another method.
        """
        if trial.impl == DENSE and (attempt.several or trial.layer in self._timed):
            return False
        if trial.impl == DENSE and trial.timing is not None:
            self._timed.add(trial.layer)
            self.dense_us[trial.layer] = trial.timing.median_us
        if trial.outcome == "selected":
            self.faster.setdefault(trial.layer, {})[trial.impl] = trial.saved_us
            self.merged[f"{trial.layer} {trial.impl}"] = attempt.names
        self.trials.append(trial)
        return True

    def option(self, layer: str, impl: str) -> Option:
        """A faster candidate with what it saves; what it damages is not known here."""
        saved = self.faster[layer][impl]
        return Option(impl, saved, 0.0, self.parts.get(f"{layer} {impl}", {layer: 1 - saved / self.dense_us[layer]}))

    @property
    def unsupported(self) -> dict[str, str]:
        """Layers of which no method has a candidate that ran, with every reason."""
        ran = {one.layer for one in self.trials if one.timing is not None}
        reasons: dict[str, dict[str, None]] = {}
        for one in self.trials:
            if one.layer not in ran and one.reason:
                reasons.setdefault(one.layer, {})[f"{Method.parse(one.impl).name}: {one.reason}"] = None
        return {layer: "; ".join(said) for layer, said in reasons.items()}


def try_layers(context: Context, settings: Settings) -> Layers:
    """Time each method on each layer that it supports, the slowest layers first, and all layers before more variants.

    What was timed before on this machine is not timed again. Layers that the budget does not reach keep their dense
    module. The store receives each candidate as it is timed.

    Args:
        context: of the study.
        settings: of the whole network.

    Raises:
        DeviceLostError: a candidate made the GPU unusable.
    """
    subject, found = context.subject, Layers()
    model = standard(subject.at(subject.start(settings), settings))
    chosen = selector(subject.device, subject.layer_mode(settings), subject.training, context.cache)
    chosen.max_tiles = TILES
    with subject.context(settings):
        attempts = attempts_on(model, context.config, settings)
        names = {name for one in attempts for name in one.names}
        observed = observe_layers(subject, model, names, settings, chosen)
        found.density = {name: density(call) for name, call in observed.calls.items()}
        found.dense_us = layer_times(model, names, observed.calls, quick(subject, settings))
        attempts.sort(key=lambda one: (one.rank, -sum(found.dense_us.get(name, 0.0) for name in one.names)))
        _try_all(context, attempts, observed, found)
    return found


def _try_all(context: Context, attempts: Sequence[Attempt], observed: Observed, found: Layers) -> None:
    """Try attempts in their order; on a GPU, the kernels of each rank are compiled together before."""
    ratios: Ratios = {}
    done = 0
    for _, row in groupby(attempts, key=lambda one: one.rank):
        variants = list(row)
        if context.subject.device.type == "cuda":
            compile_kernels([one for one in variants if not hopeless(one, ratios)], observed, context)
        for attempt in variants:
            context.watch(Stage(f"trying {attempt.method} on {attempt.layer}", done, len(attempts)))
            trials = _try(context, attempt, observed, found, ratios)
            if (ratio := ratio_to_dense(trials)) > 0:
                ratios[attempt.layer, attempt.method.name] = ratio
            _keep(context, trials, attempt, found)
            done += 1
    context.watch(Stage("trying every method on every layer", len(attempts), len(attempts)))


def _try(context: Context, attempt: Attempt, observed: Observed, found: Layers, ratios: Ratios) -> list[Trial]:
    """The candidates of an attempt; where it prunes inputs, also with its producer."""
    if attempt.refusal is None:
        device, precision = context.subject.device, observed.settings.precision
        reason = context.fatal.reason(str(attempt)) or too_dense(attempt, found.density, precision, device)
        attempt = replace(attempt, refusal=reason or hopeless(attempt, ratios))
    runs = attempt.refusal is None
    with context.fatal(str(attempt), "the layers") if runs else nullcontext():
        trials = trials_of(attempt, observed, context.budget)
    prunes = observed.groups is not None and attempt.method.name == "eliminated"
    if prunes and runs and not context.budget.over:
        trial, parts = folded_trial(attempt, observed)
        found.parts[f"{trial.layer} {trial.impl}"] = parts
        trials.append(trial)
    return trials


def _keep(context: Context, trials: Iterable[Trial], attempt: Attempt, found: Layers) -> None:
    for trial in trials:
        if found.add(trial, attempt):
            context.store.add_trial(context.run_id, trial)
