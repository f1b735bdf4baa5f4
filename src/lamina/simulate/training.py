"""Speedup of a whole training from time fractions, sparsity histograms and layer speedups.

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
"""Tolerance of fractions that must sum to one."""

Shares = Mapping[str, float]
Histograms = Mapping[str, Sequence[float]]
"""For each layer, a value per sparsity bin."""


@dataclass(frozen=True)
class LayerShare:
    """A layer's time before and after, both as fractions of the dense training time."""

    layer: str
    before: float
    after: float

    @property
    def speedup(self) -> float:
        return self.before / self.after if self.after else 1.0


@dataclass(frozen=True)
class TrainingSpeedup:
    """The speedup of a whole training. ``bound`` is that of infinitely fast layers."""

    share: float
    layers: tuple[LayerShare, ...]

    @property
    def other(self) -> float:
        """Fraction of the time in other layers."""
        return 1 - self.share

    @property
    def speedup(self) -> float:
        return 1 / (self.other + sum(layer.after for layer in self.layers))

    @property
    def layers_speedup(self) -> float:
        """Speedup of these layers only, weighted by their time."""
        return self.share / sum(layer.after for layer in self.layers)

    @property
    def bound(self) -> float:
        return 1 / self.other if self.other else math.inf


def training_speedup(
    share: float, shares: Shares, histograms: Histograms, speedups: Histograms, source: str = "training"
) -> TrainingSpeedup:
    """Equation 6.1: ``1 / (1 - P + sum_ij P C_i R_ij / S_ij)``.

    Args:
        share: P, fraction of the training time in the layers, above 0 and at most 1.
        shares: C, fraction of that time in each layer; they sum to one.
        histograms: R, fraction of the iterations of each layer in each sparsity bin; they sum to one.
        speedups: S, speedup of each layer over dense in each of these bins.
        source: name of the input in messages.

    Raises:
        SpecError: all faults at once: invalid fractions or speedups, fractions that do not sum to one, layers missing
            in one of the three or with different numbers of bins.
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
    """Fraction of observed sparsities in each bin ``[edges[j], edges[j + 1])``; the last bin includes its end.

    Raises:
        UsageError: no observation, one that is outside or NaN, or edges that do not increase.
    """
    if len(edges) < 2 or any(not low < high for low, high in pairwise(edges)):
        raise UsageError(f"histogram: expected at least two increasing edges, got {list(edges)}")
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
    """R, from the monitored sparsities of one tensor of each layer, such as its input, one per iteration.

    Raises:
        UsageError: the tensor was not observed, or an observation is outside the edges.
    """
    seen: dict[str, list[float]] = {}
    tensors = set()
    for each in observations:
        tensors.add(each.tensor)
        if each.tensor == tensor:
            seen.setdefault(each.layer, []).append(1 - each.density)
    if not seen:
        raise UsageError(f"sparsity_histograms: no observations of {tensor!r}: {nearest(tensor, tensors)}")
    return {layer: histogram(values, edges) for layer, values in seen.items()}


def time_shares(rows: Iterable[LayerRun], layers: Sequence[str]) -> tuple[float, dict[str, float]]:
    """P and C from measured rows: the fraction of the total time in ``layers``, and of that in each of them.

    The rows are those of one benchmark at one point: all phases of all layers. The row of the whole network, phase
    ``step``, is ignored.

    Raises:
        UsageError: there are no layers, one has no time, any row has failed, or the rows are of several points.
    """
    if not layers or len(set(layers)) != len(layers):
        raise UsageError(f"time_shares: expected layers, each once, got {list(layers)}")
    times: dict[str, float] = {}
    points = set()
    for row in rows:
        if row.outcome == "failed":
            raise UsageError(f"time_shares: {row.layer} {row.phase} failed ({row.reason}): its time is unknown")
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
        yield f"P = {share}: expected a fraction above 0 and at most 1"
    if not shares:
        yield "C: expected the fraction of at least one layer"
    yield from _invalid_fractions("C", list(shares.values()) or [1.0])
    for layer in shares:
        for name, table in (("R", histograms), ("S", speedups)):
            if layer not in table:
                yield f"{name}[{layer}] is missing: give every layer of C a row"
        bins, gains = histograms.get(layer), speedups.get(layer)
        if bins is not None:
            yield from _invalid_fractions(f"R[{layer}]", bins)
        if gains is not None and not all(0 < gain < math.inf for gain in gains):
            yield f"S[{layer}] = {list(gains)}: expected finite speedups above 0"
        if bins is not None and gains is not None and len(bins) != len(gains):
            yield f"S[{layer}]: expected {len(bins)} speedups, one for each bin of R, got {len(gains)}"
    for name, table in (("R", histograms), ("S", speedups)):
        if unknown := sorted(set(table) - set(shares)):
            yield f"{name}: {', '.join(unknown)} not in C: add these layers to C, or remove them"


def _invalid_fractions(name: str, values: Sequence[float]) -> Iterator[str]:
    if not all(0 <= value <= 1 for value in values):
        yield f"{name} = {list(values)}: expected fractions from 0 to 1"
    elif abs(math.fsum(values) - 1) > TOLERANCE:
        yield f"{name}: expected fractions that sum to 1, got {math.fsum(values):.6g}"
