"""What limits the phases that matter, and why their warps wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lamina.explain import stalls
from lamina.explain.bounds import SATURATED, Bound, units
from lamina.explain.view import FACT, View
from lamina.explain.wording import name, percent
from lamina.record import Finding

SHOWN = 2
"""Stall reasons named for each phase."""
LEAST = 0.005
"""Part of the step that a limit must hold to be listed."""
WHOLLY = 0.95
"""Part of a phase from which its limit is called that of all of it."""
HIDING = ("tensor cores", "multiply-add units")
"""Units that do the work: where one is saturated, other warps wait at no cost."""
SLIGHT = 0.15
"""Part of the waiting below which a reason is not worth naming second."""


def what_limits(view: View) -> Iterator[Finding]:
    """Each limit's part of the step in one sentence, then each phase that matters."""
    parts: dict[str, float] = {}
    counted = [row for row, bound in view.bounds.items() if bound.source == "counters"]
    if all(bound.kind == "unknown" for bound in view.bounds.values()):
        return
    for row, bound in view.bounds.items():
        parts[bound.kind] = parts.get(bound.kind, 0.0) + view.share.get(row, 0.0)
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    said = ", ".join(f"{kind} {percent(part)}" for kind, part in ordered.items() if part >= LEAST)
    weight = sum(view.share.get(row, 0.0) * bound.confidence for row, bound in view.bounds.items())
    yield view.finding(
        "limits of the step",
        f"{'what limits the step' if counted else 'the nearest roofs of the step'}: {said}",
        ordered,
        list(view.bounds),
        weight,
    )
    for row in sorted(filter(view.matters, counted), key=lambda row: -view.share[row]):
        bound = view.bounds[row]
        evidence = {"share of step": view.share[row], "share of kernel time": bound.share, **units(bound.held)}
        yield view.finding(
            f"limit: {bound.kind}",
            f"{name(row)} is limited by {_limited(bound)}",
            evidence,
            [row],
            bound.confidence,
            row,
        )


def _limited(bound: Bound) -> str:
    return str(bound) if bound.share > WHOLLY else f"{bound} for {percent(bound.share)} of its kernel time"


def why_warps_wait(view: View) -> Iterator[Finding]:
    """The two largest stall reasons of each phase that matters, and what to do about them."""
    for row in sorted(filter(view.matters, view.rows), key=lambda row: -view.share[row]):
        held = view.bounds[row].held or view.launches[row.key]
        largest = [(reason, part) for reason, part in list(stalls.shares(held).items())[:SHOWN] if part >= SLIGHT]
        if not largest:
            continue
        said = [
            f"{percent(part)} for {stalls.REASONS[reason].means} ({_judged(reason, units(held))})"
            for reason, part in largest
        ]
        claim = f"warps of {name(row)} wait {', '.join(said)}"
        evidence = {"share of step": view.share[row], **dict(largest)}
        yield view.finding("stalls", claim, evidence, [row], FACT, row)


def _judged(reason: str, used: Mapping[str, float]) -> str:
    """A stall reason with what to do, or with the unit that is busy all the same."""
    known = stalls.REASONS[reason]
    good = [unit for unit in known.fine or HIDING if used.get(unit, 0.0) >= SATURATED]
    if not good:
        return f"{reason}; {known.do}"
    unit = max(good, key=lambda unit: used[unit])
    return f"{reason}; {'good' if known.fine else 'hidden'}: {unit} {used[unit]:.0f} %"
