"""Speedups of networks from those of their layers."""

import pytest

from lamina.errors import UsageError
from lamina.pipeline.reproduce.networks import mean_speedup, network_speedups, weighted
from lamina.pipeline.reproduce.points import ON_CHIP, Pair
from lamina.spec.points import SimulationPoint


def pair(network: str, work: str, before: float, after: float, times: int = 1, networks: int = 1) -> Pair:
    point = SimulationPoint(work, times, {}, {"network": network}, {}, networks)
    return Pair(point, before / after, before, {ON_CHIP: (after / 100, 0.0)})


def test_a_network_s_speedup_is_that_of_its_summed_time() -> None:
    own = [pair("a", "conv1", 10, 5, networks=3), pair("a", "conv2", 2, 4, times=5, networks=3)]
    own.append(pair("b", "conv", 6, 2))
    found = network_speedups(own)
    assert found == {"a": (pytest.approx(20 / 25), 3), "b": (pytest.approx(3.0), 1)}
    assert mean_speedup(found) == pytest.approx((3 * 0.8 + 3.0) / 4)


def test_a_layer_that_occurs_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="expected each layer once, got conv1, conv1"):
        network_speedups([pair("a", "conv1", 10, 5), pair("a", "conv1", 10, 4)])


def test_a_rate_is_weighted_by_time() -> None:
    layers = [pair("a", "x", 10, 30), pair("a", "y", 10, 10)]
    assert weighted(ON_CHIP, layers) == pytest.approx((0.3 * 30 + 0.1 * 10) / 40)
    assert weighted(ON_CHIP, []) is None
    assert weighted("conversion use", [pair("a", "x", 10, 30)]) is None
