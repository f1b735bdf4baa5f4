"""Which variants of a method are tried on a layer."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.runtime import compile_ahead
from lamina.accelerate.select import Cache, Selector, observe
from lamina.pipeline.study.budget import Budget
from lamina.pipeline.study.layers import HOPELESS, _best, _compile, _hopeless, _Unit
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


class Fatal:
    """Watches over everything, and leaves out what ended an earlier process."""

    def __init__(self, left_out: str) -> None:
        self.left_out, self.watched = left_out, list[str]()

    def reason(self, what: str) -> str | None:
        return "it ended its process" if what == self.left_out else None

    def __call__(self, what: str, stage: str) -> Any:
        self.watched.append(what)
        assert compile_ahead.active()
        return nullcontext()


def test_kernels_are_compiled_before_anything_is_timed() -> None:
    def timer(steps: Any) -> Any:
        raise AssertionError("timed")

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    calls = observe(model, ["0", "1"], torch.randn(4, 8))
    texts = {"0": ["circulant[block_size=4]", "sparse", "dense:fft"], "1": ["circulant[block_size=4]", "weight-only"]}
    units = [
        _Unit(Method.parse(text), (name,), model.get_submodule(name), None, None)
        for name, row in texts.items()
        for text in row
    ]
    fatal: Any = Fatal("1, circulant[block_size=4]")
    chosen = Selector(timer, Cache(None, {}), "eager", training=False)
    _compile(units, calls, chosen, SETTINGS, Budget(None), fatal, lambda _: None)
    assert fatal.watched == ["0, circulant[block_size=4]", "1, weight-only"]
    assert not compile_ahead.active()
