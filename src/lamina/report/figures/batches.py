"""Time of each layer at each point of the grid: batch sizes side by side."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.record import LayerRun
from lamina.record.wording import label
from lamina.report import units
from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot
from lamina.report.layers import slowest
from lamina.report.palette import SERIES


def by_batch(scene: Scene) -> Plot | str:
    """Time of each layer, one lane for each setting; of several phases their sum."""
    settings = scene.material.settings
    if len(settings) < 2:
        return "the run has one batch size and one setting: there is nothing to compare it with"
    if len(settings) > len(SERIES):
        return f"the run has {len(settings)} settings, of which this figure shows {len(SERIES)} at most"
    scenes = {setting: scene.material.scene(setting, scene.phase) for setting in settings}
    layers = slowest({layer: of for each in scenes.values() for layer, of in each.layers.items()})
    series = [
        Series(label(setting), colour, [_us(each.layers.get(layer, {})) for layer in layers], lane)
        for lane, ((setting, each), colour) in enumerate(zip(scenes.items(), SERIES, strict=False))
    ]
    plot = layer_bars(layers, series, Quantity("time", units.TIMES))
    return plot or "nothing has a time"


def _us(rows: Mapping[str, LayerRun]) -> float | None:
    times = [row.timing.median_us for row in rows.values() if row.timing]
    return sum(times) if times else None
