"""Each rung adds the same partials, by a kernel of its own."""

from functools import lru_cache

import pytest
import torch

from benchmarks.ladder import weight_reduction
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time
from benchmarks.results import Row
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.testing.cuda_on_cpu import KernelOnCpu


def test_each_rung_is_timed(cold: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = set()

    class Named(KernelOnCpu):
        def __init__(self, source: str, name: str, **options: object) -> None:
            if name == "reduce_weight_gradient":
                sources.add(source)
            super().__init__(source, name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cuda, "kernel_class", Named)
    monkeypatch.setattr(cuda, "_kernel", lru_cache(cuda._kernel.__wrapped__))
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 4)
    monkeypatch.setattr(cuda, "MANY_SUMS", 1)
    monkeypatch.setattr(cuda, "weight_tile", lambda *_: cuda.WeightTile(1, 1, 1, item_blocks=2))

    layer = Layer("small", 50, 32, 48, 16, precision="tf32")
    rows = [*weight_reduction.measured(layer, cold, 1000.0, torch.device("cpu"))]
    assert [row["impl"] for row in rows] == [
        f"fused_rows[reduction={rung}]" for rung in ("numbers", "predicated", "vectors")
    ]
    assert len(sources) == 3
    for row in rows:
        Row.model_validate(row)
        assert row["rel_error"] < 1e-3
        assert row["predicted_us"] == pytest.approx(4 * 50 * 80 / 1e6)
