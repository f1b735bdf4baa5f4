"""Bytes of each layer: allocated, and moved through DRAM."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.report import units
from lamina.report.figures.bars import Quantity, Series, layer_bars
from lamina.report.figures.counters import missing, uncounted
from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot

SECTOR = 32
"""Bytes of a DRAM transaction."""


def allocated(scene: Scene) -> Plot | str:
    """The most that was allocated while a layer ran, and when it ended; of several phases the highest."""
    rows = [list(phases.values()) for phases in scene.shown.values()]
    series = [
        Series("while it ran", "series2", [_most(row.peak_bytes for row in of) for of in rows]),
        Series("when it ended", "series1", [_most(row.live_bytes for row in of) for of in rows], lane=1),
    ]
    missing = dict.fromkeys(scene.shown, "not recorded")
    plot = layer_bars(list(scene.shown), series, Quantity("allocated", units.SIZES), missing=missing)
    return plot or "allocated memory was not recorded: 'lamina profile' does so on a GPU"


def moved(scene: Scene) -> Plot | str:
    """Bytes through DRAM, beside those that a layer cannot avoid to read and write."""
    reads, writes = ([_times(SECTOR, it) for it in scene.counts(f"dram_{which}_transactions")] for which in DIRECTIONS)
    if all(value is None for value in (*reads, *writes)):
        return uncounted(scene, [f"dram_{which}_transactions" for which in DIRECTIONS])
    series = [
        Series("DRAM reads", "series2", reads),
        Series("DRAM writes", "series4", writes),
        Series("compulsory", "series1", [_all(scene, layer) for layer in scene.shown], lane=1),
    ]
    plot = layer_bars(list(scene.shown), series, Quantity("bytes", units.SIZES), missing=missing(scene))
    return plot or "no layer was counted"


DIRECTIONS = ("read", "write")


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _most(values: Iterable[int | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _all(scene: Scene, layer: str) -> float | None:
    """Compulsory bytes of the layer's chosen phases, unknown where one's are."""
    known = [row.bytes for row in scene.layers[layer].values() if row.timing]
    return sum(it for it in known if it is not None) if known and None not in known else None
