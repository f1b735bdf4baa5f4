"""A study as Markdown, for a pull request: the result, the changed layers, and the rest folded."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.record.study import Measured, Study
from lamina.report import units
from lamina.report.study_table import selected, verdict
from lamina.spec.plan import COMPILED

SHOWN = 15
"""Layers in a table; the others are counted."""

ALONE = "Layers are timed alone, in CUDA graphs on a GPU: the compiler fuses dense ones with their activations besides."


def study_markdown(study: Study) -> str:
    """Under 60 lines, whatever the size of the network."""
    plan, before, uniform = study.whole("plan"), study.whole("before"), study.uniform
    kind = "training step" if study.goal == "train" else "forward pass"
    lines = [f"### lamina study: {_escaped(study.network)}", "", f"{_sentence(verdict(study))}", ""]
    rows = [("before", before)]
    rows += [("best uniform setting", uniform)] if uniform is not before else []
    rows += [("**plan**", plan)]
    lines += [
        f"| | settings | {kind} | speedup | {study.metric} | memory |",
        "|---|---|---:|---:|---:|---:|",
        *(_row(name, one, before, study) for name, one in rows),
        "",
    ]
    chosen = selected(study)
    if chosen:
        trials = {one.layer: one for one in study.trials if one.outcome == "selected"}
        lines += ["| layer | method | dense | plan |", "|---|---|---:|---:|"]
        for layer, impl in list(chosen.items())[:SHOWN]:
            one = trials[layer]
            times = [_time(one.dense_us), _time(one.timing.median_us if one.timing else None)]
            lines.append(f"| {_escaped(layer)} | `{_escaped(impl)}` | {' | '.join(times)} |")
        if len(chosen) > SHOWN:
            lines.append(f"| {len(chosen) - SHOWN} more layers | | | |")
        lines += ["", ALONE, ""] if plan.settings.mode in COMPILED else [""]
    lines += _details(
        "Other settings",
        [
            f"- {_escaped(str(one.settings))}: {_time(one.timing.median_us) if one.timing else 'did not run'}"
            + (f" ({_escaped(one.reason)})" if one.reason else "")
            for one in study.wholes
            if one not in (before, plan, uniform)
        ],
    )
    lines += _details("What limits the network", [f"- {_escaped(text)}" for text in study.findings])
    lines.append('Apply it: `model = lamina.apply(model, "plan.toml")`')
    return units.sentence("\n".join(lines) + "\n")


def _row(name: str, one: Measured, before: Measured, study: Study) -> str:
    accuracy = one.accuracy if one.accuracy is None or study.metric == "accuracy" else 100 - one.accuracy
    cells = [
        name,
        _escaped(str(one.settings)),
        _time(one.timing.median_us if one.timing else None),
        f"{before.timing.median_us / one.timing.median_us:.2f}x" if one.timing and before.timing else "",
        "" if accuracy is None else f"{accuracy:.2f} %",
        "" if one.peak_bytes is None else units.size(one.peak_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def _details(title: str, lines: Sequence[str]) -> list[str]:
    shown = list(lines[:SHOWN]) + ([f"- {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
    return [f"<details><summary>{title}</summary>", "", *shown, "", "</details>", ""] if lines else []


def _time(us: float | None) -> str:
    return "" if us is None else units.duration(us)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _escaped(text: str) -> str:
    """Text that stays text: no markup, no column of a table, no line of its own."""
    plain = " ".join(text.split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        plain = plain.replace(sign, safe)
    return plain
