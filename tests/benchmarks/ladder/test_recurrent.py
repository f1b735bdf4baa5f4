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


def test_every_rung_has_the_error_of_its_precision_and_changes_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "LAUNCHES", 2)
    monkeypatch.setattr(recurrent, "BLOCK_SIZE", 8)
    seen: list[tuple[int, int]] = []
    tiles = []
    steps = ops._switches

    def noted(tile: LSTMStepTile, *rest: Any) -> dict[str, Any]:
        tiles.append(tile.rows)
        return steps(tile, *rest)

    monkeypatch.setattr(ops, "_switches", noted)

    def time(call: Callable[[], object]) -> Timing:
        for _ in range(3):  # seen, recorded, played
            call()
        seen.append((len(tiles), tiles[-1] if tiles else 0))
        tiles.clear()
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 9)

    rows = [*recurrent.measured(8, "fp32", time, torch.device("cpu"), (2, 2))]
    impls = ["dense", *(f"circulant[rung={rung}]" for rung in recurrent.RUNGS)]
    assert [Row.model_validate(row).impl for row in rows] == impls
    assert max(row["rel_error"] for row in rows[1:]) < 1e-6
    assert {row["predicted_us"] for row in rows} == {4 * 2 * 2.0 / 2}
    # A rung's step is made once before it is timed: of three more one is recorded, and two are played. By operators
    # no tile is chosen at all. Forward and back each choose one.
    assert seen == [(0, 0), (0, 0), (0, 0), (4, 16), (4, 4)]
