"""Each rung runs its own version, and its sums are compared with float64."""

from collections.abc import Callable

import pytest
import torch

from benchmarks.ladder import channel_sums
from benchmarks.results import Row
from lamina.accelerate.common.channel_sums import ops
from lamina.record import Timing


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")  # Triton's
def test_each_rung_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(channel_sums.LAYERS, "small", (3, 17, 90))
    programs: list[int] = []

    def time(call: Callable[[], object]) -> Timing:
        programs.append(ops.PROGRAMS)
        call()
        return Timing("graph", "cold", 2.0, 1.0, 3.0, 9)

    rows = [*channel_sums.measured("small", "fp32", time, 1000.0, torch.device("cpu"))]
    assert [row["impl"] for row in rows] == ["dense", *channel_sums.RUNGS]
    assert programs == [ops.PROGRAMS, 1, 2 * ops.PROGRAMS, ops.PROGRAMS]
    for row in rows:
        Row.model_validate(row)
        assert row["rel_error"] < 1e-5 and row["predicted_us"] == pytest.approx(3 * 17 * 90 * 4 / 1e6)
