"""Rungs are timed beside what moving their bytes takes, and held to float64."""

import pytest
import torch

from benchmarks.ladder import windows
from benchmarks.results import Row
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.record import Timing

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")


@pytest.mark.parametrize("terms", [1, 2])
def test_every_phase_has_all_rungs_and_the_error_of_its_precision(terms: int) -> None:
    asked = []

    def time(call: object) -> Timing:
        asked.append(call)
        return Timing("graph", "warm", 2.0, 1.0, 3.0, 10)

    window = Conv2dProblem(1, 4, 5, 3, 3, 1, 1, 1, 1)
    rows = [*windows.measured("small", window, 2, 3, terms, time, 4.0, torch.device("cpu"), slots=2)]
    assert len(asked) == len(rows) == 9
    rungs = [f"circulant[rung={rung}]" for rung in ("cached", "halo", "together")]
    assert [Row.model_validate(row).impl for row in rows] == rungs * 3
    assert max(row["rel_error"] for row in rows) < (1e-3 if terms == 1 else 1e-6)
    (forward, *_) = rows
    elements = 2 * terms * (20 * 2 * 2 + 27 * 2 * 2), 2 * 20 * 2 * 3 * (2 if terms == 2 else 1)
    assert forward["predicted_us"] == pytest.approx(2 * sum(elements) / 4.0 / 1e3)
