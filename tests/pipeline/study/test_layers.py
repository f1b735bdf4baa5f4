"""Which variants of a method are tried on a layer."""

from typing import Any

import pytest
from torch import nn

from lamina.pipeline.study.layers import HOPELESS, _best, _hopeless, _Unit
from lamina.record import Timing
from lamina.record.study import Settings, Trial
from lamina.spec import Method

SETTINGS = Settings("fp16", "nhwc", "graph")


def trial(impl: str, time_us: float | None, dense_us: float = 10.0) -> tuple[Trial, float]:
    timing = None if time_us is None else Timing("graph", "warm", time_us, time_us, time_us, 7)
    return Trial("conv", "Conv2d", impl, SETTINGS, timing=timing, dense_us=dense_us if timing else None), 0.0


def unit(text: str) -> _Unit:
    return _Unit(Method.parse(text), ("conv",), nn.Identity(), None, None, 1)


@pytest.mark.parametrize(
    ("rows", "ratio"),
    [
        ([trial("dense", 10.0), trial("eliminated", 30.0), trial("eliminated[fold=true]", 8.0)], 0.8),
        ([trial("dense", 10.0), trial("circulant[block_size=64]", 30.0)], 3.0),
        ([trial("dense", 10.0), trial("circulant[block_size=64]", None)], 0.0),
        ([], 0.0),
    ],
)  # fmt: skip
def test_a_method_is_as_good_as_its_fastest_candidate(rows: Any, ratio: float) -> None:
    assert _best(rows) == ratio


def test_variants_of_what_was_much_slower_are_not_tried() -> None:
    reached = {("conv", "circulant"): 3.0, ("conv", "eliminated"): HOPELESS, ("conv", "dense"): 9.0}
    reason = _hopeless(unit("circulant[block_size=32]"), reached)
    assert reason == "the variant of circulant before it took 3.0 times as long as the dense layer"
    for text in ("eliminated[keep=0.5]", "dense:fft", "sparse"):
        assert _hopeless(unit(text), reached) is None
