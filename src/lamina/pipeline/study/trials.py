"""Trials of a method on the layers that it replaces together, timed against these layers as they are."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from lamina import accelerate, run
from lamina.accelerate.convert import select_layer
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import unfitted
from lamina.accelerate.registry import converter
from lamina.accelerate.select import DENSE, decide
from lamina.errors import UnsupportedError, UsageError
from lamina.pipeline.algorithms import select_algorithm
from lamina.pipeline.apply import describe_type
from lamina.pipeline.convert import ROUNDS
from lamina.pipeline.study.attempts import Attempt
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.folded import fold_impl, fold_times
from lamina.pipeline.study.observed import Observed
from lamina.record import Selection, Timing
from lamina.record.study import Outcome, Trial

OVER = "the time budget of this stage was spent"

CLOCKS = {"eager": "wall", "compiled": "wall", "graph": "graph"}
"""By the mode that layers run in, the clock that times them."""


def trials_of(attempt: Attempt, observed: Observed, budget: Budget) -> list[Trial]:
    """Every implementation of a method on its layers; the fastest is ``selected`` if it is faster than dense.

    The dense layers, timed in the same rounds, are among them. An attempt that does not run has one trial, with the
    reason.
    """
    kinds = attempt.module if isinstance(attempt.module, nn.Sequential) else [attempt.module]
    one = Trial(attempt.layer, " + ".join(map(describe_type, kinds)), str(attempt.method), observed.settings)
    if attempt.refusal is not None:
        return [replace(one, outcome="refused", reason=attempt.refusal)]
    if budget.over:
        return [replace(one, outcome="failed", reason=OVER)]
    try:
        selection = _selected(attempt, observed)
    except UnsupportedError as error:
        return [replace(one, outcome="refused", reason=str(error))]
    except (UsageError, RuntimeError) as error:
        return [replace(one, outcome="failed", reason=run.one_line(error))]
    return _rows(one, attempt, selection)


def _rows(one: Trial, attempt: Attempt, selection: Selection) -> list[Trial]:
    """A trial for each implementation that was timed or refused."""
    dense_us, reason = selection.times_us[DENSE], _named(selection.reason, attempt)
    found = []
    for impl, time_us in selection.times_us.items():
        quartiles = selection.quartiles_us.get(impl, (time_us, time_us))
        timing = Timing(CLOCKS[selection.mode], "warm", time_us, *quartiles, ROUNDS)
        own = replace(one, impl=_named(impl, attempt), timing=timing, dense_us=dense_us, reason=reason)
        faster = impl == selection.impl and impl != DENSE
        found.append(replace(own, outcome="selected") if faster else own)
    for impl, why in selection.refusals.items():
        found.append(replace(one, impl=_named(impl, attempt), outcome="refused", reason=why))
    return found


def _selected(attempt: Attempt, observed: Observed) -> Selection:
    """The times of an attempt's layers and of their implementations by its method.

    Raises:
        UnsupportedError, UsageError: as `select_layer` does.
    """
    call = observed.calls.get(attempt.layer)
    if attempt.method.dense:
        return select_algorithm(attempt.module, attempt.method, observed.chosen, call)
    config = unfitted(accelerate.configuration(attempt.method))  # what fits the weights takes no time in a step
    quick = config
    if isinstance(config, Eliminated) and config.keep is not None:  # which inputs are kept takes no part in the time
        quick = replace(config, select="even")
    new = converter(quick).replace(attempt.module, quick)
    return select_layer(attempt.module, new, config, observed.chosen, call, attempt.stays)[0]


def _named(text: str, attempt: Attempt) -> str:
    """A text in which implementations have the recovery that they will have in the network."""
    requested = dict(attempt.method.options).get("recovery")
    return text if requested is None else text.replace("recovery=scale", f"recovery={requested}")


def folded_trial(attempt: Attempt, observed: Observed) -> tuple[Trial, dict[str, float]]:
    """The layer with its producer, without the channels that the layer does not read.

    With the trial goes the time of each of the two layers over its dense one; none if it is refused.
    """
    name = attempt.layer
    group = (observed.groups or {}).get(name, 1)
    impl = fold_impl(attempt.method, group)
    one = Trial(name, describe_type(observed.model.get_submodule(name)), impl, observed.settings)
    config = unfitted(accelerate.configuration(attempt.method))
    try:
        dense, ours, parts = fold_times(
            observed.model, name, config, group, observed.calls, observed.example, observed.chosen
        )
    except (UnsupportedError, UsageError, RuntimeError) as error:
        return replace(one, outcome="refused", reason=run.one_line(error)), {}
    verdict = decide({DENSE: dense, impl: ours}, observed.chosen.mode)
    outcome: Outcome = "selected" if verdict.impl == impl else "slower"
    reason = f"with its producer, {verdict.reason}"
    return replace(one, timing=ours, dense_us=dense.median_us, outcome=outcome, reason=reason), parts
