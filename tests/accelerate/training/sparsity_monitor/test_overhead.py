"""How the monitor's cost is summed up."""

import pytest
import torch

from benchmarks.monitor_overhead import interval, shown


def test_interval_of_few_samples_is_all_of_them() -> None:
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(i) for i in range(6)]) == (0.0, 5.0)


@pytest.mark.parametrize("n", [6, 9, 25])
def test_interval_holds_the_median_nineteen_times_of_twenty(n: int) -> None:
    draws = torch.randn(4000, n, generator=torch.Generator().manual_seed(0)).exp()  # the median is 1
    held = sum(low <= 1 <= high for low, high in (interval(each.tolist()) for each in draws)) / len(draws)
    assert 0.94 < held < 0.985


def test_costs_are_shown_with_their_interval() -> None:
    row = {"added": 0.0123, "added_low": -0.001, "added_high": 0.02, "added_to_least": 0.005}
    assert shown(row) == "1.23 (-0.10 to 2.00), least 0.50"
