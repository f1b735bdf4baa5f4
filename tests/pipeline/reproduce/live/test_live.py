"""Measurements on this device return rows that their rules judge."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina.pipeline.reproduce.live import circulant, elimination, libraries, live
from lamina.pipeline.reproduce.live.timing import Layer
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.spec.published import entry

QUICK = Scope("cpu", quick=True)
COLUMNS = {"workload", "layer", "phase", "impl", "batch", "timing", "median_us"}


def judged(name: str, rows: Any) -> list[bool | None]:
    it = entry(name)
    assert all(row.keys() >= COLUMNS and row["median_us"] > 0 and row["timing"] == "cpu" for row in rows)
    return [row.agrees for row in judge(it, measurement(it.measures), rows)]


def test_layers_are_timed_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circulant, "SMALL", (Layer("A", 128, 64), Layer("B", 64, 64, 3, 3)))
    rows = circulant.by_batch(QUICK)
    assert [row["impl"] for row in rows[:2]] == ["dense", "circulant[block_size=64,impl=reference]"]
    assert {row["batch"] for row in rows} == {1, 4, 16} and len(rows) == 12
    assert None not in judged("circulant-figure-7.6", rows)


def test_eliminated_layers_are_timed_by_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "LAYERS", (Layer("conv2", 8, 8, 3, 5), Layer("fc6", 16, 8)))
    rows = elimination.layers(QUICK)
    assert len(rows) == 10
    assert judged("deftnn-figure-10", rows) != [None]


def test_pruned_layers_compute_what_is_left_of_the_weights() -> None:
    for layer, x in (
        (nn.Conv2d(3, 4, 3, stride=2, padding=1), torch.randn(2, 3, 7, 9)),
        (nn.Linear(6, 4), torch.randn(3, 6)),
    ):
        weight = layer.weight.detach().clone()
        sparse = elimination.SparseLayer(layer)
        kept = sparse.weight.to_dense()
        assert int((kept != 0).sum()) == weight.numel() // 2
        with torch.no_grad():
            layer.weight.copy_(kept.view_as(weight))
            assert torch.allclose(sparse(x), layer(x), atol=1e-5)


def test_parts_of_a_sparse_convolution_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(libraries.Timer):
        def us(self, call: Any) -> float:
            call()
            return 1.0

    monkeypatch.setattr(libraries, "Timer", Once)
    assert None not in judged("spartan-figure-6.3", libraries.parts(QUICK))


def test_entries_share_the_rows_of_one_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(circulant, "by_batch", lambda scope: calls.append(scope) or [])
    run = live("circulant", "by_batch")
    assert run(QUICK) is run(QUICK) and calls == [QUICK]
