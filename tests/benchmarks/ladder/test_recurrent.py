"""Rungs are timed beside the library's layer and what their launches take, and each changes what it says."""

from collections.abc import Callable

import pytest
import torch

from benchmarks.ladder import recurrent
from benchmarks.results import Row
from lamina.accelerate.circulant.recurrent import ops
from lamina.record import Timing

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")


def test_every_rung_has_the_error_of_its_precision_and_changes_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "LAUNCHES", 2)
    monkeypatch.setattr(recurrent, "BLOCK_SIZE", 8)
    seen = []

    def time(call: Callable[[], object]) -> Timing:
        seen.append((ops.recurrence is ops.by_steps, ops.step_tile(8, 2, 1).rows))
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 9)

    rows = [*recurrent.measured(8, "fp32", time, torch.device("cpu"), (2, 2))]
    impls = ["dense", *(f"circulant[rung={rung}]" for rung in recurrent.RUNGS)]
    assert [Row.model_validate(row).impl for row in rows] == impls
    assert max(row["rel_error"] for row in rows[1:]) < 1e-6
    assert {row["predicted_us"] for row in rows} == {4 * 2 * 2.0 / 2}
    assert seen == [(False, 4), (False, 4), (True, 4), (False, 16), (False, 4)]
