"""Training speedups by equation 6.1 with measured P, C and R and simulated S: table 6.7 of Spartan's dissertation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lamina.pipeline.explain import Side, look_up
from lamina.pipeline.imports import import_file
from lamina.pipeline.reproduce.measured.judging import Measurement, NotMeasured, Rows
from lamina.pipeline.targets import find
from lamina.recipes import recordings
from lamina.simulate.training import time_shares, training_speedup
from lamina.simulate.workloads import convolutions
from lamina.spec.layers.convolution import Convolution
from lamina.spec.published import PublishedValue
from lamina.store import open_store

SIMULATED: Mapping[str, str] = {
    "alexnet": "spartan-figure-6.17-recorded",
    "vgg16": "spartan-figure-6.18-recorded",
    "resnet18": "spartan-figure-6.19-recorded",
}
"""The entry whose recorded rows have S of each moment of a training, by network."""
FEW = 2
"""Missing layers that a reason names."""
RECORDED = "recorded"
"""The pattern of masks from a training."""


def measured_share(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """P in %: the fraction of a training step that is spent in convolutions, in the recorded profile of the network.

    Raises:
        NotMeasured: the package has no such profile.
    """
    share, _, where = _shares(value.layer)
    return 100 * share, f"{100 * share:.3g} % {where}"


def speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Equation 6.1.

    C are the convolutions' times in the profile, over all phases. R gives each recorded moment of the training the same
    weight, and S is simulated with the masks of that moment, once for layers of equal shape. The first convolution
    reads an image, and is dense.

    Raises:
        NotMeasured: there is no profile, or a layer has no simulated moment.
    """
    network = value.layer
    share, shares, where = _shares(network)
    shapes = {one.layer: (one.m, one.n, one.k) for one in convolutions(find(network)[0].resolve(None))}
    simulated: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        if row["entry"] == SIMULATED[network] and row["pattern"] == RECORDED:
            simulated.setdefault(shapes[row["layer"]], []).append(row["speedup"])
    first, *others = shares
    if missing := [layer for layer in others if shapes[layer] not in simulated]:
        more = f" and {len(missing) - FEW} more" if len(missing) > FEW else ""
        layers = ", ".join(missing[:FEW]) + more
        raise NotMeasured(f"no simulation with masks recorded over a training of {network}: {layers}")
    gains = {first: [1.0], **{layer: simulated[shapes[layer]] for layer in others}}
    moments = {layer: [1 / len(own)] * len(own) for layer, own in gains.items()}
    found = training_speedup(share, shares, moments, gains, network)
    count = max(len(own) for own in gains.values())
    return found.speedup, f"{found.speedup:.3g} x (P {100 * share:.3g} % {where}, {count} moments of the training)"


@cache
def _shares(network: str) -> tuple[float, dict[str, float], str]:
    """P, C and where they are from, at the largest batch of the network's recorded profile."""
    paths = recordings.of(network)
    if not paths:
        raise NotMeasured(f"no recorded profile of {network}: P and C are not measured")
    with open_store(":memory:") as store:
        side: Side = look_up(store, import_file(paths[0], store))
    layers = [each.name for each in find(network)[0].resolve(None) if isinstance(each.layer, Convolution)]
    batch = max(row.batch for row in side.rows)
    own = [row for row in side.rows if row.batch == batch and (row.timing is None or row.timing.clock == "cupti")]
    share, shares = time_shares(own, layers)
    return share, shares, f"in {own[0].precision} at batch {batch} on {side.run.environment.get('device')}"


MEASUREMENT = Measurement(
    ("simulated_recorded",),
    values={"P": measured_share, "training speedup": speedup},
    command="python -m benchmarks.published_simulations recorded",
)
