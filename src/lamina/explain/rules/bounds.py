"""Bottlenecks and warp stalls of the phases that take a significant part of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lamina.explain import stalls
from lamina.explain.bounds import SATURATED, Bound, units
from lamina.explain.view import FACT, View
from lamina.explain.wording import name, percent
from lamina.record import Finding

MAX_REASONS = 2
"""Stall reasons named for each phase."""
MIN_LISTED = 0.005
"""Smallest fraction of the step for which a limiter is listed."""
ALL = 0.95
"""Fraction of a phase's kernel time from which its limiter is taken to be that of the whole phase."""
MATH_UNITS = ("tensor cores", "FMA units")
"""Units that do the arithmetic: while one is saturated, stalls of other warps are hidden."""
MIN_REASON = 0.15
"""Smallest fraction of the stall time for which a reason is named."""


def bottlenecks(view: View) -> Iterator[Finding]:
    """One finding with each limiter's part of the step, then one for each significant phase."""
    parts: dict[str, float] = {}
    counted = [row for row, bound in view.bounds.items() if bound.source == "counters"]
    if all(bound.kind == "unknown" or not view.share.get(row) for row, bound in view.bounds.items()):
        return
    for row, bound in view.bounds.items():
        parts[bound.kind] = parts.get(bound.kind, 0.0) + view.share.get(row, 0.0)
    ordered = dict(sorted(parts.items(), key=lambda item: -item[1]))
    limits = ", ".join(f"{kind} {percent(part)}" for kind, part in ordered.items() if part >= MIN_LISTED)
    weight = sum(view.share.get(row, 0.0) * bound.confidence for row, bound in view.bounds.items())
    yield view.finding(
        "bottlenecks",
        f"{'bottlenecks' if counted else 'nearest rooflines'} by step time: {limits}",
        ordered,
        list(view.bounds),
        weight,
    )
    for row in sorted(filter(view.matters, counted), key=lambda row: -view.share[row]):
        bound = view.bounds[row]
        evidence = {"share of step": view.share[row], "share of kernel time": bound.share, **units(bound.launches)}
        yield view.finding(
            f"bottleneck: {bound.kind}",
            f"{name(row)} is limited by {_limited(bound)}",
            evidence,
            [row],
            bound.confidence,
            row,
        )


def _limited(bound: Bound) -> str:
    return str(bound) if bound.share > ALL else f"{bound} for {percent(bound.share)} of its kernel time"


def warp_stalls(view: View) -> Iterator[Finding]:
    """The two largest stall reasons of each significant phase, with advice."""
    for row in sorted(filter(view.matters, view.rows), key=lambda row: -view.share[row]):
        launches = view.bounds[row].launches or view.launches[row.key]
        largest = [
            (reason, part) for reason, part in list(stalls.shares(launches).items())[:MAX_REASONS] if part >= MIN_REASON
        ]
        if not largest:
            continue
        reasons = [
            f"{percent(part)} waiting for {stalls.REASONS[reason].waits_for} ({_advice(reason, units(launches))})"
            for reason, part in largest
        ]
        claim = f"warp stalls of {name(row)}: {', '.join(reasons)}"
        evidence = {"share of step": view.share[row], **dict(largest)}
        yield view.finding("warp stalls", claim, evidence, [row], FACT, row)


def _advice(reason: str, used: Mapping[str, float]) -> str:
    """The stall reason with its advice, or with the saturated unit that makes the stall harmless."""
    known = stalls.REASONS[reason]
    saturated = [unit for unit in known.expected_with or MATH_UNITS if used.get(unit, 0.0) >= SATURATED]
    if not saturated:
        return f"{reason}; {known.advice}"
    unit = max(saturated, key=lambda unit: used[unit])
    return f"{reason}; {'expected' if known.expected_with else 'hidden'}: {unit} {used[unit]:.0f} %"
