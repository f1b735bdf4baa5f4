"""The chain from dense to engine: one change each, their product the whole."""

from itertools import pairwise
from math import prod

import pytest

from lamina.simulate.compaction_engine.attribution import CHAIN, NEEDED, attribution
from lamina.simulate.compaction_engine.config import Engine
from lamina.simulate.compaction_engine.unit import SETUPS, Control

CYCLES: dict[Control, int] = {
    "dense": 100, "kernel": 200, "kernel-small-l2": 250, "prefetch": 125, "prefetch-fp16": 100, "lines": 80,
    "engine": 40,
}  # fmt: skip


def test_factors_multiply_to_the_speedup() -> None:
    gains = attribution(CYCLES)
    assert [gain.factor for gain in gains] == [0.5, 0.8, 2.0, 1.25, 1.25, 2.0]
    assert prod(gain.factor for gain in gains) == pytest.approx(2.5)


def test_the_chain_is_unbroken() -> None:
    assert all(one[2] == other[1] for one, other in pairwise(CHAIN))
    assert (CHAIN[0][1], CHAIN[-1][2]) == ("dense", "engine")
    assert set(NEEDED) == set(CYCLES)


def test_neighbours_are_one_setting_apart() -> None:
    names: tuple[Control, ...] = ("prefetch", "prefetch-fp16", "lines")
    prefetch, narrow, lines = (SETUPS[control].engine(Engine()) for control in names)
    assert prefetch and narrow and lines
    assert prefetch.model_copy(update={"narrow": True}) == narrow
    assert narrow.model_copy(update={"compaction": True}) == lines
