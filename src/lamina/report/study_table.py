"""Terminal tables of a study: the whole network at each setting, and what was selected for each layer."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from lamina.record.study import Measured, Study, Trial
from lamina.report import units
from lamina.report.plain_table import Line, plain_table, reasons

SHOWN = 20
"""Layers in a table; the others are counted."""

DENSE = "dense"
OVER = "time budget"
"""In the reason of what was not tried."""

ROUNDING = 1e-6
"""In points: accuracies are ratios of samples."""


def wholes_table(study: Study, width: int | None = None) -> Table:
    """The network as its user runs it, at uniform settings, and by the plan."""
    before = study.whole("before")
    headings = ["network", "settings", "step", "quartiles", "speedup", study.metric, "memory", "energy", "note"]
    lines = [Line(_whole(one, study, before), _style(one)) for one in study.wholes if one.timing is not None]
    lost = [one for one in study.wholes if one.timing is None]
    uniform = study.uniform
    title = f"Study: {study.network}, {'training' if study.goal == 'train' else 'inference'}, batch {study.batch}"
    return plain_table(
        headings,
        lines,
        numeric=headings[2:8],
        title=title,
        caption=[
            *reasons((str(one.settings), one.reason) for one in lost),
            verdict(study),
            f"baseline: {uniform.settings}",
        ],
        width=width,
        dispensable=("energy", "quartiles", "memory"),
        wrapped="note",
    )


def verdict(study: Study) -> str:
    """The result in one sentence."""
    plan, before, uniform = study.whole("plan"), study.whole("before"), study.uniform
    if not (plan.timing and uniform.timing):
        return "the network could not be timed"
    changed = len(selected(study))
    if not before.timing:
        gain = f"{uniform.timing.median_us / plan.timing.median_us:.2f}x over the best uniform setting"
        what = f"the plan changes {changed} layers: {gain}" if changed else f"it runs at {plan.settings}"
        return f"the network does not run as it was ({before.reason}); {what}"
    against = before.timing.median_us / plan.timing.median_us
    untried = sum(OVER in reason for reason in (one.reason for row in (study.wholes, study.trials) for one in row))
    if not changed and plan.settings == before.settings:
        what = f"; the time budget left {untried} settings and candidates untried" if untried else ""
        return f"nothing that was tried is faster than the network as it is{what}"
    if not changed:
        return f"no layer changes: the network at {plan.settings} is {against:.2f}x as fast as it was{_beyond(study)}"
    over = uniform.timing.median_us / plan.timing.median_us
    layers = f"{changed} layer{'s' if changed > 1 else ''} changed"
    gains = f"{over:.2f}x over the best uniform setting, {against:.2f}x over the network as it was"
    return f"the plan, {layers}: {gains}{_beyond(study)}"


def _beyond(study: Study) -> str:
    """What the plan loses on the test samples, if that is more than is allowed on the calibration samples."""
    before, plan = study.whole("before").accuracy, study.whole("plan").accuracy
    if before is None or plan is None or before - plan <= study.max_accuracy_drop + ROUNDING:
        return ""
    lost = f"{before - plan:.2f} points" if study.metric == "accuracy" else f"{before - plan:.2f} % of the outputs"
    return (
        f"; it loses {lost} on the test samples, more than the {study.max_accuracy_drop:.2f} that --max-accuracy-drop "
        "allows on the calibration samples: a smaller value, or a larger --calibration, leaves a margin"
    )


def layers_table(study: Study, width: int | None = None) -> Table:
    """Each layer with the candidate that was selected, or the fastest that was not, and why."""
    rows = [_layer(name, trials) for name, trials in by_layer(study.trials).items()]
    rows = [row for row in rows if row is not None]
    headings = ["layer", "type", "selected", "dense", "step", "speedup", "tried", "reason"]
    lines = [Line(cells, "green" if cells[2] != DENSE else None) for cells in rows[:SHOWN] if cells]
    caption = [f"{len(rows) - SHOWN} more layers: lamina report"] if len(rows) > SHOWN else []
    caption += reasons((name, reason) for name, reason in study.unsupported.items())
    return plain_table(
        headings,
        lines,
        numeric=headings[3:7],
        caption=caption,
        width=width,
        dispensable=("type", "tried"),
        wrapped="reason",
    )


def by_layer(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Trials of each layer, the layer with the slowest dense step first."""
    found: dict[str, list[Trial]] = {}
    for one in trials:
        found.setdefault(one.layer, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -(dense_us(item[1]) or 0.0)))


def dense_us(trials: Sequence[Trial]) -> float | None:
    """The step of the user's own layer, in microseconds."""
    return next((one.timing.median_us for one in trials if one.impl == DENSE and one.timing), None)


def selected(study: Study) -> dict[str, str]:
    """The implementation of each layer that the plan changes."""
    return {one.layer: one.impl for one in study.trials if one.outcome == "selected"}


def _whole(one: Measured, study: Study, before: Measured) -> list[str]:
    assert one.timing is not None
    speedup = before.timing.median_us / one.timing.median_us if before.timing else None
    accuracy = one.accuracy if one.accuracy is None or study.metric == "accuracy" else 100 - one.accuracy
    return [
        one.name,
        str(one.settings),
        units.duration(one.timing.median_us),
        units.durations(one.timing.q1_us, one.timing.q3_us),
        "" if speedup is None else f"{speedup:.2f}x",
        "" if accuracy is None else f"{accuracy:.2f} %",
        "" if one.peak_bytes is None else units.size(one.peak_bytes),
        "" if one.energy_j is None else f"{one.energy_j:.3g} J",
        one.reason if one.outcome != "selected" or one.name == "plan" else "selected",
    ]


def _style(one: Measured) -> str | None:
    return "green" if one.name == "plan" else "dim" if one.outcome == "inaccurate" else None


def _layer(name: str, trials: Sequence[Trial]) -> list[str] | None:
    timed = [one for one in trials if one.timing is not None and one.impl != DENSE]
    chosen = next((one for one in timed if one.outcome == "selected"), None)
    best = chosen or min(timed, key=lambda one: one.timing.median_us if one.timing else 0.0, default=None)
    if best is None or best.timing is None:
        return None
    return [
        name,
        best.kind,
        chosen.impl if chosen else DENSE,
        "" if best.dense_us is None else units.duration(best.dense_us),
        units.duration(best.timing.median_us) if chosen else "",
        f"{best.dense_us / best.timing.median_us:.2f}x" if chosen and best.dense_us else "",
        str(len(trials) - 1),
        best.reason,
    ]
