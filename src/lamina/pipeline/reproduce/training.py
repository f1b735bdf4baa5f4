"""Training speedup from simulated layers: Exploring High Performance DNNs on GPUs, 2020, equation 6.1."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.errors import UsageError
from lamina.pipeline.reproduce.points import Pair
from lamina.simulate.training import training_speedup
from lamina.spec.published import Published, PublishedValue

TRAINING, SHARE = "training speedup", "P"


def training(entry: Published, value: PublishedValue, pairs: Sequence[Pair]) -> float:
    """Equation 6.1 with the entry's printed P, from points that all have results.

    C is each workload's fraction of the baseline's simulated time; R weights all points of a workload equally.

    Raises:
        UsageError: the entry has no P of these layers.
    """
    works: dict[str, list[Pair]] = {}
    for pair in pairs:
        works.setdefault(pair.point.work, []).append(pair)
    times = {name: own[0].point.times * (own[0].baseline_us or 0.0) for name, own in works.items()}
    return training_speedup(
        _share(entry, value),
        {name: time / sum(times.values()) for name, time in times.items()},
        {name: [1 / len(own)] * len(own) for name, own in works.items()},
        {name: [pair.speedup or 0.0 for pair in own] for name, own in works.items()},
        entry.id,
    ).speedup


def _share(entry: Published, value: PublishedValue) -> float:
    found = [it.value for it in entry.values if it.quantity == SHARE and it.layer == value.layer]
    if len(found) != 1 or isinstance(found[0], str):
        raise UsageError(f"{entry.id}: {value.layer}: expected one value {SHARE} for the {TRAINING}")
    return found[0] / 100
