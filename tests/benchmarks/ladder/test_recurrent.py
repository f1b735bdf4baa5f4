"""Rungs are timed beside the library's layer and what their launches take, and each changes what it says."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.ladder import recurrent
from benchmarks.results import Row
from lamina.accelerate.methods.circulant.lstm import ops
from lamina.accelerate.methods.circulant.tiles import LSTMStepTile
from lamina.record import Timing

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")


def test_every_rung_has_the_error_of_its_precision_and_its_patches_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "LAUNCHES", 2)
    monkeypatch.setattr(recurrent, "BLOCK_SIZE", 8)
    seen: list[tuple[int, int]] = []
    tiles = []
    constexprs = ops._constexprs

    def recorded(tile: LSTMStepTile, *rest: Any) -> dict[str, Any]:
        tiles.append(tile.rows)
        return constexprs(tile, *rest)

    monkeypatch.setattr(ops, "_constexprs", recorded)

    def time(call: Callable[[], object]) -> Timing:
        for _ in range(3):  # first call, recorded, replayed
            call()
        seen.append((len(tiles), tiles[-1] if tiles else 0))
        tiles.clear()
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 9)

    rows = [*recurrent.measured(8, "fp32", time, torch.device("cpu"), (2, 2))]
    impls = ["dense", *(f"circulant[rung={rung}]" for rung in recurrent.RUNGS)]
    assert [Row.model_validate(row).impl for row in rows] == impls
    assert max(row["rel_error"] for row in rows[1:]) < 1e-6
    assert {row["predicted_us"] for row in rows} == {4 * 2 * 2.0 / 2}
    # A step runs once before it is timed; of the three timed calls, one is recorded and two are replayed. The operators
    # rung chooses no tile; otherwise forward and backward choose one each.
    assert seen == [(0, 0), (0, 0), (0, 0), (4, 16), (4, 4)]
