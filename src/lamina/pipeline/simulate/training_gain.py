"""``simulate training``: what an engine makes of a whole training, from what was measured, observed and simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.errors import UsageError
from lamina.pipeline.simulate import Planner
from lamina.pipeline.simulate.compaction import LayerGain, Simulate, gains, plan
from lamina.pipeline.targets import find
from lamina.record import LayerRun, Run, Sparsity
from lamina.simulate.jobs import Settings
from lamina.simulate.training import TrainingSpeedup, sparsity_histograms, time_shares, training_speedup
from lamina.spec.layers.convolution import Convolution
from lamina.spec.network import ResolvedLayer

POINT = ("impl", "precision", "layout", "batch", "clock", "l2")
"""What distinguishes measurements of one layer's phase."""
PHASES = ("forward", "backward_data", "backward_weight")


@dataclass(frozen=True)
class TrainingGain:
    """A training's gain; ``observed`` names the map that stood for each layer's input, ``bins`` their edges.

    ``histograms`` and ``speedups`` hold a number a bin; a layer that nothing was observed of has one bin, dense.
    """

    gain: TrainingSpeedup
    run: Run
    observed: Mapping[str, str]
    histograms: Mapping[str, Sequence[float]]
    speedups: Mapping[str, Sequence[float]]


def training_gain(
    settings: Settings,
    rows: Iterable[LayerRun],
    observations: Sequence[Sparsity],
    run: Simulate,
    *,
    point: Mapping[str, str] | None = None,
    phases: Sequence[str] = PHASES,
    bins: int = 10,
) -> TrainingGain:
    """Equation 6.1 with measured P and C, observed R and simulated S.

    A convolution's input is the output of the nearest observed layer before it; through a pooling between them it is
    denser than it was seen there. A layer with none, such as the first, runs dense. Every other one is simulated once
    for each bin of sparsity it was seen in, at the bin's middle.

    Args:
        settings: what to simulate: ``network``, and whatever ``Planner`` takes.
        rows: of a benchmark of the same network.
        observations: of a monitored training of it.
        run: simulates jobs.
        point: which of the rows, by the names in ``POINT``, where there are several.
        phases: those of a convolution that the engine speeds up as it does the forward one, which alone is simulated.
        bins: of sparsity, from 0 to 1.

    Raises:
        UsageError: rows are missing, of several points or failed; nothing was observed of any layer; a simulation
            has no result.
    """
    if bins < 1:
        raise UsageError(f"bins: expected at least 1, got {bins}")
    target, _ = find(str(settings["network"]))
    layers = target.resolve(target.batch)
    convolutions = [each.name for each in layers if isinstance(each.layer, Convolution)]
    share, shares = time_shares(_rows(rows, convolutions, point or {}, phases), convolutions)
    edges = [step / bins for step in range(bins + 1)]
    seen = sparsity_histograms(observations, "output", edges)
    observed = {name: source for name in convolutions if (source := _source(name, layers, seen))}
    if not observed:
        raise UsageError(f"{settings['network']}: expected observations of what its convolutions read, got {[*seen]}")
    planner = Planner()
    planned = {
        f"{layer} {place}": jobs
        for layer, source in observed.items()
        for place, part in enumerate(seen[source])
        if part
        for jobs in plan(
            {**settings, "density": 1 - (edges[place] + edges[place + 1]) / 2}, [layer], planner=planner
        ).values()
    }
    done = gains(planned, run)
    found = dict(zip(planned, done.layers, strict=True))
    speedups = {
        layer: [_speedup(found[f"{layer} {place}"]) if part else 1.0 for place, part in enumerate(seen[source])]
        for layer, source in observed.items()
    }
    dense = {layer: [1.0] for layer in convolutions if layer not in observed}
    histograms = {layer: seen[source] for layer, source in observed.items()}
    gain = training_speedup(share, shares, {**dense, **histograms}, {**dense, **speedups}, str(settings["network"]))
    return TrainingGain(gain, done.simulated.run, observed, {**dense, **histograms}, {**dense, **speedups})


def _rows(
    rows: Iterable[LayerRun], convolutions: Sequence[str], point: Mapping[str, str], phases: Sequence[str]
) -> list[LayerRun]:
    """Those of the point; other phases of convolutions under a name of their own, as layers that stay dense."""
    return [
        replace(row, layer=f"{row.layer} {row.phase}") if row.layer in convolutions and row.phase not in phases else row
        for row in rows
        if all(_label(row, key) in ("", value) for key, value in point.items())
    ]


def _label(row: LayerRun, key: str) -> str:
    if key in ("clock", "l2"):
        return str(getattr(row.timing, key)) if row.timing else ""
    return str(getattr(row, key))


def _source(layer: str, layers: Sequence[ResolvedLayer], seen: Mapping[str, object]) -> str:
    """The nearest observed layer before one, along first inputs."""
    named = {each.name: each.layer for each in layers}
    name = named[layer].inputs[0]
    while name in named and name not in seen:
        if isinstance(named[name], Convolution):
            return ""
        name = named[name].inputs[0]
    return name if name in seen else ""


def _speedup(layer: LayerGain) -> float:
    found = layer.speedup()
    if found is None:
        raise UsageError(f"{layer.jobs['engine'].layer}: expected a simulated speed-up: {layer.reason}")
    return found
