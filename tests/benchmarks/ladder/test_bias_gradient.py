"""Each rung sums the rows, and its sums are compared with float64."""

import pytest
import torch

from benchmarks.ladder import bias_gradient
from benchmarks.ladder.rows import Layer
from benchmarks.ladder.rungs import Time
from benchmarks.results import Row
from lamina.accelerate.methods.circulant.fused_rows import cuda
from lamina.testing.cuda_on_cpu import KernelOnCpu


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")  # Triton's
def test_each_rung_is_timed(cold: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(cuda, "row_tile", lambda *_: cuda.RowTile(1, 8, 1, item_blocks=2))
    monkeypatch.setattr(cuda, "weight_tile", lambda *_: cuda.WeightTile(1, 1, 1, item_blocks=2))

    layer = Layer("small", 18, 32, 48, 16, precision="tf32")
    rows = [*bias_gradient.measured(layer, cold, 1000.0, torch.device("cpu"))]
    biases = "sum", "channel_sums", "kernels"
    assert [row["impl"] for row in rows] == ["fused_rows", *(f"fused_rows[bias={bias}]" for bias in biases)]
    for row in rows:
        Row.model_validate(row)
        assert row["rel_error"] is None or row["rel_error"] < 1e-6
        assert row["predicted_us"] == pytest.approx(2 * 4 * 18 * 80 / 1e6)
