"""The page of a study: one offline HTML file with the result, the front, every candidate, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from lamina import __version__
from lamina.record import Run, Study, Trial
from lamina.record.study import FrontPoint, Measured
from lamina.report import units
from lamina.report.html import pages
from lamina.report.html.provenance import date, facts
from lamina.report.palette import DARK, LIGHT
from lamina.report.study_table import DENSE, by_layer, selected, verdict

WIDTH, HEIGHT, LEFT, BOTTOM = 720.0, 300.0, 64.0, 44.0
"""The drawing of the front, in units of its view box, with its margins."""

CANDIDATES = ("selected", "inaccurate", "slower", "refused", "failed")
"""Outcomes in the order of the table."""


def write_study(path: Path, run: Run, study: Study) -> Path:
    """Write the page of a study and return its path."""
    environment = pages.environment()
    environment.filters |= {"duration": units.duration, "size": units.size}
    plan, before, uniform = study.whole("plan"), study.whole("before"), study.uniform
    html = environment.get_template("study.html.j2").render(
        run=run,
        study=study,
        started=date(run.started),
        device=run.environment.get("device", "no device"),
        verdict=verdict(study),
        tiles=tiles(study),
        front=front(study),
        wholes=[_whole(one, study) for one in study.wholes],
        before=before,
        uniform=uniform,
        plan=plan,
        layers=[_layer(name, trials) for name, trials in by_layer(study.trials).items()],
        changed=len(selected(study)),
        energy=any(one.energy_j is not None for one in study.wholes),
        facts=list(facts(run, (), None)),
        lamina=__version__,
        light=LIGHT,
        dark=DARK,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path


def tiles(study: Study) -> list[dict[str, str]]:
    """What a reader sees first: speedups, accuracy, memory and energy, before and after."""
    plan, before, uniform = study.whole("plan"), study.whole("before"), study.uniform
    made = []
    for name, other, note in (
        ("over the network as it was", before, str(before.settings)),
        ("over the best uniform setting", uniform, str(uniform.settings)),
    ):
        if plan.timing and other.timing:
            ratio = other.timing.median_us / plan.timing.median_us
            times = f"{units.duration(other.timing.median_us)} → {units.duration(plan.timing.median_us)}"
            made.append({"name": name, "big": f"{ratio:.2f}x", "text": times, "note": note})
    if plan.accuracy is not None and before.accuracy is not None:
        gained = round(plan.accuracy - before.accuracy, 2)
        if study.metric == "accuracy":
            text = f"{gained:+.2f} points from {before.accuracy:.2f} %" if gained else "as before"
            big = f"{plan.accuracy:.2f} %"
        else:
            big, text = f"{100 - plan.accuracy:.2f} %", "relative error of the outputs"
        made.append(
            {
                "name": study.metric,
                "big": big,
                "text": text,
                "note": f"budget: {study.max_accuracy_drop:g} {'point' if study.max_accuracy_drop == 1 else 'points'}",
            }
        )
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "memory of a step": ("peak_bytes", units.size),
        "energy of a step": ("energy_j", lambda joules: f"{joules:.3g} J"),
        "parameters": ("parameters", units.count),
    }
    for name, (field, form) in forms.items():
        ours, theirs = (getattr(one, field) for one in (plan, before))
        if ours and theirs:
            text = f"{ours / theirs - 1:+.0%} from {form(theirs)}" if ours != theirs else "as before"
            made.append({"name": name, "big": form(ours), "text": text, "note": ""})
    return made


def front(study: Study) -> dict[str, Any] | None:
    """Points of accuracy over time in the units of the drawing, with axes; nothing for a single point."""
    points = list(study.front)
    plan = study.whole("plan")
    chosen = selected(study)
    if plan.timing and plan.accuracy is not None and chosen:
        known = [one for one in points if dict(one.methods) == chosen]
        accuracy = known[0].accuracy if known else plan.accuracy  # of the same samples as the others
        points = [one for one in points if dict(one.methods) != chosen]
        points.append(FrontPoint(plan.timing.median_us, accuracy, chosen, measured=True))
    if len(points) < 2:
        return None
    xs, ys = [one.time_us for one in points], [one.accuracy for one in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    x0, x1 = x0 - 0.06 * (x1 - x0 or 1), x1 + 0.06 * (x1 - x0 or 1)
    reference = max((one.accuracy for one in points if not one.methods), default=y1)
    limit = reference - study.max_accuracy_drop
    y0 = min(y0, limit)
    y0, y1 = y0 - 0.12 * (y1 - y0 or 1), y1 + 0.12 * (y1 - y0 or 1)

    def x(value: float) -> float:
        return round(LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - 16), 1)

    def y(value: float) -> float:
        return round(12 + (y1 - value) / (y1 - y0) * (HEIGHT - BOTTOM - 12), 1)

    drawn = [
        {
            "x": x(one.time_us),
            "y": y(one.accuracy),
            "plan": dict(one.methods) == chosen and one.measured,
            "measured": one.measured,
            "text": f"{len(one.methods)} layers changed: {units.duration(one.time_us)}, {one.accuracy:.2f} %"
            + ("" if one.measured else " (time predicted)"),
        }
        for one in sorted(points, key=lambda one: one.time_us)
    ]
    return {
        "points": drawn,
        "line": " ".join(f"{one['x']},{one['y']}" for one in drawn),
        "limit": y(limit),
        "limit_text": f"budget {limit:.2f} %",
        "xticks": [{"at": x(tick), "text": units.duration(tick)} for tick in _ticks(x0, x1)],
        "yticks": [{"at": y(tick), "text": f"{tick:.4g} %"} for tick in _ticks(y0, y1)],
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "bottom": HEIGHT - BOTTOM,
    }


def _ticks(low: float, high: float) -> list[float]:
    """About five round values in a range."""
    least = (high - low) / 6
    power = 10.0 ** floor(log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    return [index * step for index in range(ceil(low / step), floor(high / step) + 1)]


def _whole(one: Measured, study: Study) -> dict[str, Any]:
    """A line of the settings: its bar is its time over the slowest."""
    times = [each.timing.median_us for each in study.wholes if each.timing]
    before = study.whole("before")
    time = one.timing.median_us if one.timing else None
    accuracy = one.accuracy if one.accuracy is None or study.metric == "accuracy" else 100 - one.accuracy
    return {
        "name": one.name,
        "settings": str(one.settings),
        "time": "" if time is None else units.duration(time),
        "quartiles": units.durations(one.timing.q1_us, one.timing.q3_us) if one.timing else "",
        "part": 0.0 if time is None else round(100 * time / max(times), 2),
        "speedup": f"{before.timing.median_us / time:.2f}x" if time and before.timing else "",
        "accuracy": "" if accuracy is None else f"{accuracy:.2f} %",
        "memory": "" if one.peak_bytes is None else units.size(one.peak_bytes),
        "energy": "" if one.energy_j is None else f"{one.energy_j:.3g} J",
        "outcome": one.outcome,
        "reason": one.reason,
        "baseline": one.name != "plan" and one.settings == study.baseline,
    }


def _layer(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """A layer with its candidates; the bar of what was selected is its time over the dense one."""
    chosen = next((one for one in trials if one.outcome == "selected"), None)
    rest = sorted(
        (one for one in trials if one.impl != DENSE),
        key=lambda one: (CANDIDATES.index(one.outcome), one.timing.median_us if one.timing else 0.0),
    )
    dense = next((one for one in trials if one.impl == DENSE and one.timing), None)
    base = (chosen.dense_us if chosen else None) or (dense.timing.median_us if dense and dense.timing else None)
    time = chosen.timing.median_us if chosen and chosen.timing else None
    return {
        "name": name,
        "kind": trials[0].kind,
        "impl": chosen.impl if chosen else DENSE,
        "changed": chosen is not None,
        "dense": "" if base is None else units.duration(base),
        "time": "" if time is None else units.duration(time),
        "speedup": f"{base / time:.2f}x" if base and time else "",
        "part": round(100 * time / base, 1) if base and time else 100.0,
        "candidates": [_candidate(one) for one in ([dense] if dense else []) + rest],
    }


def _candidate(one: Trial) -> dict[str, str]:
    time = one.timing.median_us if one.timing else None
    return {
        "impl": one.impl,
        "time": "" if time is None else units.duration(time),
        "quartiles": units.durations(one.timing.q1_us, one.timing.q3_us) if one.timing else "",
        "dense": "" if one.dense_us is None else units.duration(one.dense_us),
        "speedup": f"{one.dense_us / time:.2f}x" if time and one.dense_us else "",
        "predicted": "" if one.predicted_us is None else units.duration(one.predicted_us),
        "outcome": "baseline" if one.impl == DENSE else one.outcome,
        "reason": one.reason,
    }
