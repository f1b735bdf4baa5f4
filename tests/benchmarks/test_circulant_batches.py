"""Speed-ups by batch, in the layout that either side likes better, and what is read off them."""

from typing import Any

import pytest
import torch

from benchmarks import circulant_batches as batches
from benchmarks.circulant_layers import Layer
from benchmarks.results import Row
from lamina.pipeline.reproduce.measured import batches as judged
from lamina.record import Timing

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")


def row(batch: int, block_size: int, us: float, layout: str = "nchw", precision: str = "fp32") -> dict[str, Any]:
    return {
        "layer": "A", "precision": precision, "layout": layout, "batch": batch, "block_size": block_size,
        "median_us": us,
    }  # fmt: skip


def course(*gains: float) -> list[dict[str, Any]]:
    return [row(2**i, k, gain if k == 0 else 1.0) for i, gain in enumerate(gains) for k in (0, 16)]


def test_either_side_is_taken_in_its_better_layout() -> None:
    rows = [row(1, 0, 8.0), row(1, 0, 6.0, "nhwc"), row(1, 16, 2.0), row(1, 16, 3.0, "nhwc"), row(2, 16, 1.0)]
    assert batches.speedups(rows, "fp32") == {("A", 16): {1: 3.0}}
    assert batches.speedups(rows, "bf16") == {}


@pytest.mark.parametrize(
    ("gains", "grows", "fades"),
    [((1.0, 2.0, 3.0), True, True), ((1.0, 2.0, 5.0), True, False), ((3.0, 3.0, 2.0), False, True)],
)
def test_rules_see_both_outcomes(gains: tuple[float, ...], grows: bool, fades: bool) -> None:
    assert judged.larger_batches_gain_more(course(*gains))[1] is grows
    assert judged.the_trend_fades(course(*gains))[1] is fades


def test_every_batch_has_the_dense_layer_and_each_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCHES", (1, 2))
    monkeypatch.setattr(batches, "BLOCK_SIZES", (2, 4))
    layer = Layer("B", "small", 1, 4, 4, 3, 3)

    def time(call: object) -> Timing:
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 9)

    rows = [Row.model_validate(one) for one in batches.measured(layer, "fp32", time, torch.device("cpu"))]
    assert [(one.batch, one.layout, one.impl.partition(",")[0]) for one in rows] == [
        (batch, layout, impl)
        for batch in (1, 2)
        for layout in ("nchw", "nhwc")
        for impl in ("dense", "circulant[block_size=2", "circulant[block_size=4")
    ]
    assert [one.rel_error is None for one in rows] == [False] * 6 + [True] * 6
    assert max(one.rel_error or 0.0 for one in rows) < 1e-5


def test_every_circulant_step_runs_once_to_compile_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCHES", (1, 2))
    monkeypatch.setattr(batches, "BLOCK_SIZES", (2, 4))
    found = []

    def step_of(module: Any, x: torch.Tensor, gy: torch.Tensor) -> Any:
        found.append((module.block_size, x.shape[0], x.is_contiguous()))
        return lambda: None

    monkeypatch.setattr(batches, "step_of", step_of)
    batches.compile_kernels(Layer("B", "small", 1, 4, 4, 3, 3), "fp32", torch.device("cpu"))
    assert sorted(found) == [(k, batch, nchw) for k in (2, 4) for batch in (1, 2) for nchw in (False, True)]
