import pytest
from tests.explain.recorded import counted, kernel, key, names, recorded, row, view

from lamina.explain import metrics, stalls
from lamina.explain.metrics import stall
from lamina.explain.rules.bounds import bottlenecks, warp_stalls
from lamina.explain.view import View

BUSY = {metrics.DRAM: 5.0, metrics.ISSUE: 20.0, metrics.FMA: 10.0}


def one_kernel(values: dict[str, float]) -> View:
    one = kernel(key("features.3"), 100.0)
    return view([row(key("features.3"), 100.0)], [one], counted(one, BUSY | values))


def test_the_step_is_divided_between_its_bottlenecks() -> None:
    summary, *each = bottlenecks(view(*recorded()))
    assert (summary.layer, summary.rule) == (None, "bottlenecks")
    assert sum(float(part) for part in summary.evidence.values() if part) == pytest.approx(1.0)
    rows, *_ = recorded()
    total = sum(it.timing.median_us for it in rows if it.timing)
    dram = next(it.timing.median_us for it in rows if it.layer == "features.1" and it.timing)
    assert summary.evidence["dram"] == pytest.approx(dram / total)
    assert each[0].claim.startswith("features.0 forward is limited by shared memory (89 %) for 67%")
    shares = [it.evidence["share of step"] for it in each]
    assert shares == sorted(shares, key=lambda it: -float(it or 0)) and min(map(float, filter(None, shares))) >= 0.02


def test_rooflines_alone_have_less_confidence() -> None:
    rows, kernels, counters = recorded()
    (by_time,) = bottlenecks(view(rows, kernels))
    summary, *_ = bottlenecks(view(rows, kernels, counters))
    assert by_time.rule == "bottlenecks" and by_time.confidence < summary.confidence
    assert list(bottlenecks(view(rows, roofs=None))) == []


def test_stalls_are_reported_with_advice() -> None:
    values = {stall("selected"): 20.0, stall("long_scoreboard"): 60.0, stall("barrier"): 16.0, stall("drain"): 4.0}
    (found,) = warp_stalls(one_kernel(values))
    assert "75% waiting for data from global memory" in found.claim
    assert "20% waiting for other warps of the thread block" in found.claim
    assert "drain" not in found.claim and "raise occupancy" in found.claim
    assert found.evidence == pytest.approx({"share of step": 1.0, "long_scoreboard": 0.75, "barrier": 0.2})


@pytest.mark.parametrize(
    ("reason", "unit", "word"),
    [
        ("math_pipe_throttle", metrics.TENSOR, "expected: tensor cores 85 %"),
        ("math_pipe_throttle", metrics.FMA, "expected: FMA units 85 %"),
        ("gmma", metrics.TENSOR, "expected: tensor cores 85 %"),
        ("not_selected", metrics.ISSUE, "expected: instruction issue 85 %"),
        ("long_scoreboard", metrics.TENSOR, "hidden: tensor cores 85 %"),
    ],
)
def test_a_stall_on_a_saturated_unit_is_expected(reason: str, unit: str, word: str) -> None:
    values = {stall("selected"): 10.0, stall(reason): 80.0, stall("wait"): 10.0}
    (busy,) = warp_stalls(one_kernel(values | {unit: 85.0}))
    assert word in busy.claim
    (idle,) = warp_stalls(one_kernel(values))
    assert "expected" not in idle.claim and "hidden" not in idle.claim


def test_a_slight_second_reason_is_not_named() -> None:
    (found,) = warp_stalls(one_kernel({stall("selected"): 0.0, stall("wait"): 90.0, stall("barrier"): 10.0}))
    assert "90% waiting for the fixed latency" in found.claim and "barrier" not in found.claim
    even = {stall("selected"): 0.0} | {stall(it): 10.0 for it in stalls.REASONS if it not in ("gmma", "tex_throttle")}
    assert list(warp_stalls(one_kernel(even))) == []


def test_small_phases_and_phases_without_counters_are_ignored() -> None:
    of, other = key("features.3"), key("features.1")
    one, big = kernel(other, 1.0), kernel(of, 99.0)
    rows = [row(of, 99.0), row(other, 1.0)]
    values = {stall("selected"): 10.0, stall("wait"): 90.0}
    assert names(warp_stalls(view(rows, [one, big], counted(one, values)))) == []
    assert names(warp_stalls(view(rows, [one, big], counted(big, values)))) == [("features.3", "forward")]
