"""Speedups and use of whole networks from simulated layers, over the networks of a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from lamina.errors import UsageError
from lamina.pipeline.reproduce.points import Pair, quantity

NETWORKS = "network speedup"
"""The mean over networks of the speedup of all their simulated layers together."""


def network_speedups(pairs: Sequence[Pair]) -> dict[str, tuple[float, int]]:
    """For each network: time of its layers in the baseline over theirs, and how many networks have these layers.

    Args:
        pairs: points that all have results, one for each layer.

    Raises:
        UsageError: a layer occurs more than once.
    """
    networks: dict[str, list[Pair]] = {}
    for pair in pairs:
        networks.setdefault(str(pair.point.settings["network"]), []).append(pair)
    found = {}
    for network, own in networks.items():
        works = [pair.point.work for pair in own]
        if len({*works}) < len(works):
            raise UsageError(f"{network}: expected each layer once, got {', '.join(works)}: set more axes in 'where'")
        before = sum(pair.point.times * (pair.baseline_us or 0.0) for pair in own)
        after = sum(_us(pair) for pair in own)
        found[network] = before / after, own[0].point.networks
    return found


def mean_speedup(found: Mapping[str, tuple[float, int]]) -> float:
    """The mean over networks, in which layers that several networks have count for each of them."""
    return fmean(each for gain, count in found.values() for each in [gain] * count)


def weighted(name: str, pairs: Iterable[Pair]) -> float | None:
    """A rate of several layers, weighted by their time; ``None`` without results."""
    found = [(value, _us(pair)) for pair in pairs if (value := quantity(name, pair)) is not None]
    total = sum(us for _, us in found)
    return sum(value * us for value, us in found) / total if total else None


def _us(pair: Pair) -> float:
    """The time of a point's layers, in us; zero without a result."""
    return pair.point.times * pair.baseline_us / pair.speedup if pair.baseline_us and pair.speedup else 0.0
