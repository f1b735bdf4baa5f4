"""``simulate training``: training speedup from measured times, observed sparsities and simulated layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.errors import UsageError
from lamina.pipeline.simulate import Planner, input_size
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
    """The speedup of a training; ``observed`` names the layer whose output stands for each layer's input.

    ``histograms`` and ``speedups`` have a value per sparsity bin; a layer without observations has one bin, dense.
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

    A convolution's input is taken to be the output of the nearest observed layer before it; a pooling layer in between
    makes it denser than observed. A layer without one, such as the first, runs dense. Every other layer is simulated
    once for each sparsity bin in which it was observed, at the center of the bin.

    Args:
        settings: settings of the simulation: ``network``, and others of ``Planner``.
        rows: rows of a benchmark of the same network.
        observations: sparsities of a monitored training of the network.
        run: simulates jobs.
        point: selects rows by the names in ``POINT`` if there are several points.
        phases: phases of a convolution with the speedup of the forward phase, the only one that is simulated.
        bins: number of sparsity bins from 0 to 1.

    Raises:
        UsageError: rows are missing, of several points or failed; no layer was observed; a simulation
            has no result.
    """
    if bins < 1:
        raise UsageError(f"bins: expected at least 1, got {bins}")
    target, _ = find(str(settings["network"]), input_size=input_size(settings, "--input-size"))
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
        f"{layer} {index}": jobs
        for layer, source in observed.items()
        for index, part in enumerate(seen[source])
        if part
        for jobs in plan(
            {**settings, "density": 1 - (edges[index] + edges[index + 1]) / 2}, [layer], planner=planner
        ).values()
    }
    done = gains(planned, run)
    found = dict(zip(planned, done.layers, strict=True))
    speedups = {
        layer: [_speedup(found[f"{layer} {index}"]) if part else 1.0 for index, part in enumerate(seen[source])]
        for layer, source in observed.items()
    }
    dense = {layer: [1.0] for layer in convolutions if layer not in observed}
    histograms = {layer: seen[source] for layer, source in observed.items()}
    gain = training_speedup(share, shares, {**dense, **histograms}, {**dense, **speedups}, str(settings["network"]))
    return TrainingGain(gain, done.simulated.run, observed, {**dense, **histograms}, {**dense, **speedups})


def _rows(
    rows: Iterable[LayerRun], convolutions: Sequence[str], point: Mapping[str, str], phases: Sequence[str]
) -> list[LayerRun]:
    """The rows of the point; phases of convolutions outside ``phases`` get names of their own and stay dense."""
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
        raise UsageError(f"{layer.jobs['engine'].layer}: expected a simulated speedup: {layer.reason}")
    return found
