"""Kernels by the time they take."""

from __future__ import annotations

from lamina.report import units
from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot
from lamina.report.layers import LONGEST

MOST = 20
"""Kernels that are named."""


def kernels_by_time(scene: Scene) -> Plot | str:
    """Time and number of launches of each kernel by name, the longest first; the others stand together."""
    launches = [it for layer in scene.layers for it in scene.launches(layer)]
    if not launches:
        return "the run has no kernels: 'lamina profile' records them on a GPU"
    spent: dict[str, list[float]] = {}
    for it in launches:
        spent.setdefault(scene.material.names.get(it.name, it.name), []).append(it.duration_us)
    ranked = sorted(spent, key=lambda name: -sum(spent[name]))
    shown = {name: spent[name] for name in ranked[:MOST]}
    if rest := ranked[MOST:]:
        shown[f"{len(rest)} others"] = [us for name in rest for us in spent[name]]
    ticks = [f"{_cut(name)} ×{len(times):,}" for name, times in shown.items()]
    series = [Series("time", "series1", [sum(times) for times in shown.values()])]
    return layer_bars(list(shown), series, Quantity("time", units.TIMES), ticks=ticks) or "no kernel took any time"


def _cut(name: str) -> str:
    """The beginning of a long name, which says what a kernel is."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
