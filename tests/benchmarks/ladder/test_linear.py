"""Rungs are timed beside what moving their bytes takes, and each changes what it says."""

import pytest
import torch

from benchmarks.circulant_layers import Layer
from benchmarks.ladder import linear
from benchmarks.results import Row
from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.runtime import triton_ops as launches
from lamina.record import Timing

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")

LAYER = Layer("small", "small", 2, 64, 64)
CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_rung_has_the_error_of_its_precision(precision: str) -> None:
    rows = [*linear.measured(LAYER, precision, lambda call: Timing("graph", "warm", 2.0, 1.0, 3.0, 9), 4.0, CPU)]
    assert [Row.model_validate(row).impl for row in rows] == [f"circulant[rung={rung}]" for rung in linear.RUNGS]
    assert max(row["rel_error"] for row in rows) < (1e-6 if precision == "fp32" else 1e-2)
    elements = 2 * 64 + 64 + 2 * 64
    assert rows[0]["predicted_us"] == pytest.approx(
        elements * (2 if precision == "bf16" else 4) * (2 * 2 + 3) / 4.0 / 1e3  # six transforms and three matmuls
    )


def test_rungs_change_launches_and_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "supports_pdl", lambda device: True)
    seen = []

    def time(call: object) -> Timing:
        small, large = torch.empty(4), torch.empty(2**20)
        tile = ops.linear_tile(128, 16, 256, 32, 2, 1, ops.MIN_MATMUL_PROGRAMS, 2**17, False)
        seen.append((launches.pdl_options(small)["PDL"], launches.pdl_options(large)["PDL"], tile.block_m))
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 9)

    monkeypatch.setattr(linear, "error_of", lambda *_: 0.0)
    assert len([*linear.measured(LAYER, "fp32", time, 4.0, CPU)]) == 4
    assert seen == [(0, 0, 128), (0, 0, 32), (1, 1, 32), (2, 1, 32)]
