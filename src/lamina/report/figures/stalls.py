"""What warps wait for."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.counters import PERCENT, missing, uncounted
from lamina.report.figures.material import STEP, Material, Scene
from lamina.report.figures.plot import Plot
from lamina.report.palette import SERIES

REASONS = {
    "stall_memory_dependency": "data from L1, L2 or DRAM",
    "stall_exec_dependency": "the previous result",
    "stall_gmma": "asynchronous tensor cores",
    "stall_pipe_busy": "a busy pipe",
    "stall_sync": "a barrier",
    "stall_not_selected": "its turn",
    "stall_memory_throttle": "the memory queue",
    "stall_inst_fetch": "instructions",
    "stall_constant_memory_dependency": "a constant",
    "stall_texture": "the texture queue",
    "stall_sleeping": "the end of a sleep",
    "stall_other": "the dispatcher or a branch",
}
"""nvprof's names of the shares, which add up to 100, and what a warp waits for."""


def stalls(scene: Scene) -> Plot | str:
    """Shares of the waiting by reason and layer; the smallest reasons of the run stand together."""
    sizes = _sizes(scene.material)
    large = sorted(sizes, key=lambda name: -sizes[name])[: len(SERIES) - 1]
    named = [name for name in REASONS if name in large]
    series = [Series(REASONS[name], colour, scene.counts(name)) for name, colour in zip(named, SERIES, strict=False)]
    small = [scene.counts(name) for name in sizes if name not in named]
    if small:
        rest = [_together([values[place] for values in small]) for place in range(len(scene.shown))]
        series.append(Series("something else", "rest", rest))
    plot = layer_bars(
        list(scene.shown),
        series,
        Quantity("share of the waiting", PERCENT),
        marks=False,
        missing=missing(scene),
    )
    return plot or uncounted(scene, list(REASONS))


def _sizes(material: Material) -> Mapping[str, float]:
    """How large each reason is over the run: its shares in all layers, weighted by their time."""
    sizes: dict[str, float] = {}
    for row in material.rows:
        counted = material.counted.get(row.key, {})
        if row.timing and row.phase != STEP:
            for name in REASONS:
                if (share := counted.get(name)) is not None:
                    sizes[name] = sizes.get(name, 0.0) + share * row.timing.median_us
    return sizes


def _together(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
