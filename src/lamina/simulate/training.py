"""What a faster convolution makes of a whole training: shares, sparsity histograms and speed-ups together.

Exploring High Performance Deep Neural Networks on GPUs, 2020, equation 6.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lamina.errors import Fault, SpecError, UsageError, nearest
from lamina.record import LayerRun, Sparsity

TOLERANCE = 1e-6
"""How far shares that must add up to one may be off."""

Shares = Mapping[str, float]
Histograms = Mapping[str, Sequence[float]]
"""For each layer, a number for each bin of sparsity."""


@dataclass(frozen=True)
class LayerShare:
    """A layer's share of the dense training time, and what is left of it, both of the whole dense training."""

    layer: str
    before: float
    after: float

    @property
    def speedup(self) -> float:
        return self.before / self.after if self.after else 1.0


@dataclass(frozen=True)
class TrainingSpeedup:
    """The speed-up of a whole training, at most ``bound``: what infinitely fast layers would give."""

    share: float
    layers: tuple[LayerShare, ...]

    @property
    def other(self) -> float:
        """Share of the time that no layer here takes."""
        return 1 - self.share

    @property
    def speedup(self) -> float:
        return 1 / (self.other + sum(layer.after for layer in self.layers))

    @property
    def layers_speedup(self) -> float:
        """Of the layers alone, weighted by their time."""
        return self.share / sum(layer.after for layer in self.layers)

    @property
    def bound(self) -> float:
        return 1 / self.other if self.other else math.inf


def training_speedup(
    share: float, shares: Shares, histograms: Histograms, speedups: Histograms, source: str = "training"
) -> TrainingSpeedup:
    """Equation 6.1: ``1 / (1 - P + sum_ij P C_i R_ij / S_ij)``.

    Args:
        share: P, of the training time that the layers take together, from 0 (without) to 1.
        shares: C, of that time for each layer; they add up to one.
        histograms: R, of the iterations of each layer in each bin of sparsity; they add up to one.
        speedups: S, of each layer in each of these bins, dense being 1.
        source: what messages call the material.

    Raises:
        SpecError: all faults at once: numbers that are no shares or no speed-ups, shares that do not add up to
            one, layers missing in one of the three or without equally many bins.
    """
    faults = [Fault(message) for message in _faults(share, shares, histograms, speedups)]
    if faults:
        raise SpecError(source, faults)
    return TrainingSpeedup(
        share,
        tuple(
            LayerShare(
                layer,
                share * part,
                share * part * sum(r / s for r, s in zip(histograms[layer], speedups[layer], strict=True)),
            )
            for layer, part in shares.items()
        ),
    )


def histogram(sparsities: Iterable[float], edges: Sequence[float]) -> tuple[float, ...]:
    """Share of observed sparsities in each bin ``[edges[j], edges[j + 1])``, the last one with its end.

    Raises:
        UsageError: no observation, one that is outside or NaN, or edges that do not rise.
    """
    if len(edges) < 2 or any(not low < high for low, high in pairwise(edges)):
        raise UsageError(f"histogram: expected at least two rising edges, got {list(edges)}")
    values = list(sparsities)
    outside = [value for value in values if not edges[0] <= value <= edges[-1]]
    if outside or not values:
        raise UsageError(
            f"histogram: expected sparsities from {edges[0]} to {edges[-1]}, "
            f"got {outside[0] if outside else 'none at all'}"
        )
    counts, _ = np.histogram(values, edges)
    return tuple(float(count) / len(values) for count in counts)


def sparsity_histograms(
    observations: Iterable[Sparsity], tensor: str, edges: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """R of what a monitor saw of one tensor of each layer, such as its input: an observation an iteration.

    Raises:
        UsageError: nothing was seen of that tensor, or the edges do not hold it.
    """
    seen: dict[str, list[float]] = {}
    tensors = set()
    for each in observations:
        tensors.add(each.tensor)
        if each.tensor == tensor:
            seen.setdefault(each.layer, []).append(1 - each.density)
    if not seen:
        raise UsageError(f"sparsity_histograms: nothing was observed of {tensor!r}: {nearest(tensor, tensors)}")
    return {layer: histogram(values, edges) for layer, values in seen.items()}


def time_shares(rows: Iterable[LayerRun], layers: Sequence[str]) -> tuple[float, dict[str, float]]:
    """P and C of measured rows: the share of all rows' time that ``layers`` take, and of that each one's.

    The rows are those of one benchmark at one point: all phases of all layers. Its row of the whole network, the
    phase ``step``, does not count: its layers are there already.

    Raises:
        UsageError: there are no layers, one has no time, any row has failed, or the rows are of several points.
    """
    if not layers or len(set(layers)) != len(layers):
        raise UsageError(f"time_shares: expected layers, each once, got {list(layers)}")
    times: dict[str, float] = {}
    points = set()
    for row in rows:
        if row.outcome == "failed":
            raise UsageError(f"time_shares: {row.layer} {row.phase} failed ({row.reason}): its time is not known")
        if row.timing is None or row.phase == "step":
            continue
        points.add((row.impl, row.precision, row.layout, row.batch, row.timing.clock, row.timing.l2))
        times[row.layer] = times.get(row.layer, 0.0) + row.timing.median_us
    if len(points) > 1:
        raise UsageError(
            "time_shares: expected rows of one implementation, precision, layout, batch and clock, "
            f"got {sorted(points)}"
        )
    missing = [layer for layer in layers if not times.get(layer)]
    if missing:
        raise UsageError(f"time_shares: expected a time of {', '.join(missing)}: benchmark these layers first")
    chosen = sum(times[layer] for layer in layers)
    return chosen / sum(times.values()), {layer: times[layer] / chosen for layer in layers}


def _faults(share: float, shares: Shares, histograms: Histograms, speedups: Histograms) -> Iterator[str]:
    if not 0 < share <= 1:
        yield f"P = {share}: expected a share above 0 and at most 1"
    if not shares:
        yield "C: expected the share of at least one layer"
    yield from _not_shares("C", list(shares.values()) or [1.0])
    for layer in shares:
        for name, table in (("R", histograms), ("S", speedups)):
            if layer not in table:
                yield f"{name}[{layer}] is missing: give every layer of C a row"
        bins, gains = histograms.get(layer), speedups.get(layer)
        if bins is not None:
            yield from _not_shares(f"R[{layer}]", bins)
        if gains is not None and not all(0 < gain < math.inf for gain in gains):
            yield f"S[{layer}] = {list(gains)}: expected finite speed-ups above 0"
        if bins is not None and gains is not None and len(bins) != len(gains):
            yield f"S[{layer}]: expected {len(bins)} speed-ups, one for each bin of R, got {len(gains)}"
    for name, table in (("R", histograms), ("S", speedups)):
        if strange := sorted(set(table) - set(shares)):
            yield f"{name}: {', '.join(strange)} not in C: give these layers their share of the time, or leave them out"


def _not_shares(name: str, values: Sequence[float]) -> Iterator[str]:
    if not all(0 <= value <= 1 for value in values):
        yield f"{name} = {list(values)}: expected shares from 0 to 1"
    elif abs(math.fsum(values) - 1) > TOLERANCE:
        yield f"{name}: expected shares that add up to 1, got {math.fsum(values):.6g}"
