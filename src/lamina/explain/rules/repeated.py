"""Layers that repeat, none of which takes much of the step, but all of them together do."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain.patterns import repeated
from lamina.explain.rules.timings import LOW
from lamina.explain.view import MATTERS, MODEL, SAVING, View
from lamina.explain.wording import percent
from lamina.record import Finding, LayerRun


def repeated_below_roofline(view: View) -> Iterator[Finding]:
    """Repeated layers far below their roofline, once for each phase, largest potential saving first."""
    found: list[tuple[float, str, list[str], list[LayerRun]]] = []
    phases: dict[tuple[str, str], list[LayerRun]] = {}
    pattern_of = {layer: pattern for pattern, layers in view.repeats.items() if len(layers) > 1 for layer in layers}
    for row in view.timings:
        if row.layer in pattern_of and view.roofline[row].bound in ("compute", "memory"):
            phases.setdefault((pattern_of[row.layer], row.phase), []).append(row)
    for (pattern, _), rows in phases.items():
        layers = list(dict.fromkeys(row.layer for row in rows))
        part = sum(view.share.get(row, 0.0) for row in rows)
        if len(layers) > 1 and part >= MATTERS and not all(map(view.matters, rows)):
            gain = sum(view.share.get(row, 0.0) * max(1 - (view.roofline[row].share or 0.0), 0.0) for row in rows)
            if 1 - gain / part < LOW:
                found.append((gain, pattern, layers, rows))
    for gain, pattern, layers, rows in sorted(found, key=lambda it: -it[0]):
        part = sum(view.share[row] for row in rows)
        longest = max(rows, key=lambda row: view.share[row])
        claim = (
            f"{repeated(pattern, layers)} {rows[0].phase} reaches {percent(1 - gain / part)} of its "
            f"{view.roofline[longest].bound} roofline; at the roofline the step would be {percent(gain)} shorter"
        )
        evidence: dict[str, float | str | None] = {"layers": float(len(layers)), "pattern": pattern}
        evidence |= {"phase": rows[0].phase, "longest": longest.layer}
        evidence |= {"share of roofline": 1 - gain / part, "share of step": part}
        yield view.finding("repeated below roofline", claim, evidence | {SAVING: gain}, rows, MODEL)
