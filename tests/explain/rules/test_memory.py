from dataclasses import replace

import pytest
from tests.explain.recorded import counted, document, kernel, key, recorded, row, view

from lamina.explain import metrics
from lamina.explain.rules.memory import dram_bytes, excess_traffic, workspace
from lamina.explain.view import SAVING, View

OF = key("features.1")
BYTES = 2 * 4 * 128 * 64 * 55 * 55


def moved(times: float, used: float = 80.0) -> View:
    one = kernel(OF, 100.0)
    sectors = times * BYTES / 32 / 2
    values = {metrics.DRAM_READS: sectors, metrics.DRAM_WRITES: sectors, metrics.DRAM: used}
    return view([row(OF, 100.0)], [one], counted(one, values))


def test_excess_dram_traffic_is_reported() -> None:
    (found,) = excess_traffic(moved(3.0))
    assert found.evidence["amplification"] == pytest.approx(3.0)
    assert found.evidence[SAVING] == pytest.approx(2 / 3)
    assert "(3.0 times)" in found.claim and f"{BYTES / 1e6:.0f} MB of operands" in found.claim


@pytest.mark.parametrize(("times", "used"), [(1.9, 80.0), (3.0, 20.0)])
def test_little_excess_or_an_idle_dram_is_not_reported(times: float, used: float) -> None:
    assert list(excess_traffic(moved(times, used))) == []


def test_without_counters_there_is_no_traffic_finding() -> None:
    assert list(excess_traffic(view([row(OF, 100.0)], [kernel(OF, 100.0)]))) == []


def test_dram_bytes_from_rates_match_those_from_counts() -> None:
    rows, kernels, counters = recorded("features.1")
    rated = [it for it in counters if not it.metric.startswith("dram__sectors")]
    by_count, by_rate = (
        dram_bytes(view(rows, kernels, counters), rows[0]),
        dram_bytes(view(rows, kernels, rated), rows[0]),
    )
    (of,) = (one for one in document()["kernels"] if one["layer"] == "features.1")
    expected = 32 * sum(of["counters"][f"dram__sectors_{way}.sum"] for way in ("read", "write"))
    assert by_count == pytest.approx(expected)
    assert by_rate == pytest.approx(expected, rel=0.02)


def test_temporary_memory_at_the_peak_is_reported() -> None:
    small = row(key("features.1"), 10.0, peak_bytes=700, live_bytes=690)
    large = row(key("features.3", "backward_weight"), 10.0, peak_bytes=1000, live_bytes=600)
    (found,) = workspace(view([small, large]))
    assert (found.layer, found.phase) == ("features.3", "backward_weight")
    assert found.evidence == {"peak bytes": 1000.0, "live bytes": 600.0, "next peak bytes": 700.0}
    assert list(workspace(view([small, replace(large, live_bytes=900)]))) == []
    assert list(workspace(view([large]))) == []
    assert list(workspace(view([replace(small, peak_bytes=None), replace(large, live_bytes=None)]))) == []
