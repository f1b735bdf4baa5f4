"""Rows arranged for drawing: layer by layer, in order of execution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.record import LayerRun
from lamina.report import units
from lamina.report.palette import PHASES

LONGEST = 28
"""Characters of a layer's name beside a bar; the full name is in the hover text and the tables."""


def by_layer(rows: Iterable[LayerRun]) -> dict[str, dict[str, LayerRun]]:
    """The phases of each layer; rows that are no phase of a layer are left out."""
    layers: dict[str, dict[str, LayerRun]] = {}
    for row in sorted(rows, key=lambda row: row.place):
        if row.phase in PHASES:
            layers.setdefault(row.layer, {})[row.phase] = row
    return layers


MOST = 60
"""Layers that a figure shows; their labels and bars are still legible one by one."""


def slowest(layers: Mapping[str, Mapping[str, LayerRun]], most: int = MOST) -> list[str]:
    """The layers that take the most time, at most ``most``, in the order in which they came."""

    def us(layer: str) -> float:
        return sum(row.timing.median_us for row in layers[layer].values() if row.timing)

    kept = set(sorted(layers, key=us, reverse=True)[:most])
    return [layer for layer in layers if layer in kept]


def label(phases: Mapping[str, LayerRun]) -> str:
    """What stands at the end of a layer's bar: its sum, and the phases that failed."""
    total = sum(row.timing.median_us for row in phases.values() if row.timing)
    return ", ".join([*([units.duration(total)] if total else []), *(f"no {phase}" for phase in failed(phases))])


def failed(phases: Mapping[str, LayerRun]) -> list[str]:
    """Phases of a layer that failed; those that were skipped lack nothing."""
    return [phase for phase, row in phases.items() if row.outcome == "failed"]


def short(name: str) -> str:
    """The end of a long name, which is where the layers of a block differ.

    >>> short("features.denseblock3.denselayer12.conv1")
    '…seblock3.denselayer12.conv1'
    """
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
