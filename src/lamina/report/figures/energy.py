"""Energy of each layer, phase by phase."""

from __future__ import annotations

from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot

JOULES = ((1e-6, "uJ"), (1e-3, "mJ"), (1.0, "J"))
PHASES = (("forward", "series1"), ("backward_data", "series2"), ("backward_weight", "series4"))


def energy(scene: Scene) -> Plot | str:
    """Joules of one execution, phases stacked."""
    layers = list(scene.shown)
    series = [
        Series(phase.replace("_", " "), colour, [_joules(scene, layer, phase) for layer in layers])
        for phase, colour in PHASES
    ]
    series = [one for one in series if any(one.values)]
    if not series:
        return "energy was not measured: 'lamina profile --energy 0.2' does so on a GPU with an energy counter"
    plot = layer_bars(layers, series, Quantity("energy", JOULES), missing=dict.fromkeys(layers, "not measured"))
    return plot or "energy was not measured"


def _joules(scene: Scene, layer: str, phase: str) -> float | None:
    """Of a phase that does not run, none."""
    row = scene.shown[layer].get(phase)
    return row.energy_j if row and row.timing else 0.0
