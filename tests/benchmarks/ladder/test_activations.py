"""Each rung computes the layer behind its GELU, which is compared with float64."""

import pytest
import torch

from benchmarks.ladder import activations
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time
from benchmarks.results import Row
from lamina.accelerate.methods.circulant.activations import InputActivation
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.run import precision_mode
from lamina.testing.cuda_on_cpu import KernelOnCpu


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_each_rung_is_timed(activation: InputActivation, cold: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(cuda, "row_tile", lambda *_: cuda.RowTile(1, 8, 1, item_blocks=2))
    monkeypatch.setattr(cuda, "weight_tile", lambda *_: cuda.WeightTile(1, 1, 1, item_blocks=2))

    layer = Layer("small", 18, 48, 32, 16, precision="tf32")
    with precision_mode("tf32", autotune=False):
        rows = [*activations.measured(layer, activation, cold, 1000.0, torch.device("cpu"))]
    assert [row["impl"] for row in rows] == [f"fused_rows{rung}" for rung in activations.PASSES for _ in range(2)]
    for row in rows:
        Row.model_validate(row)
        assert row["rel_error"] < 2**-9
    assert rows[0]["predicted_us"] == pytest.approx(4 * 18 * 80 / 1e6)
    assert rows[3]["predicted_us"] == pytest.approx(4 * 18 * (5 * 48 + 2 * 32) / 1e6)
