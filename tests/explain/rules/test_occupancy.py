import pytest
from tests.explain.recorded import counted, kernel, key, names, recorded, row, view

from lamina.explain import metrics
from lamina.explain.launches import Launches
from lamina.explain.rules.occupancy import idle_sms, limiting_resource, low_occupancy
from lamina.explain.view import SAVING, View
from lamina.record import Finding

LIMITS = {
    "launch__occupancy_limit_registers": 2.0,
    "launch__occupancy_limit_shared_mem": 3.0,
    "launch__occupancy_limit_warps": 16.0,
    "launch__occupancy_limit_blocks": 32.0,
}
QUIET = {metrics.DRAM: 10.0, metrics.ISSUE: 20.0, metrics.L2: 10.0, metrics.FMA: 10.0}


def one(values: dict[str, float]) -> View:
    made = kernel(key("features.3"), 100.0, "void big_kernel<float>(int)", registers=200, shared_bytes=65536)
    return view([row(key("features.3"), 100.0)], [made], counted(made, QUIET | LIMITS | values))


@pytest.mark.parametrize(
    ("busy", "waves", "empty"), [(60.0, 0.8, 0.4), (60.0, 1.3, 0.4), (60.0, 40.0, None), (95.0, 0.8, None)]
)
def test_a_grid_that_does_not_fill_the_device_is_found(busy: float, waves: float, empty: float | None) -> None:
    found = list(idle_sms(one({metrics.BUSY: busy, metrics.WAVES: waves})))
    assert [it.evidence[SAVING] for it in found] == ([pytest.approx(empty)] if empty else [])
    if empty:
        assert "40% idle" in found[0].claim and found[0].layer == "features.3"


def test_without_both_counters_there_is_no_idle_sm_finding() -> None:
    assert list(idle_sms(one({metrics.BUSY: 10.0}))) == []
    assert list(idle_sms(one({metrics.WAVES: 0.5}))) == []


def warps(**changes: float) -> list[Finding]:
    values = {metrics.OCCUPANCY: 12.0, metrics.WAVES: 3.0, metrics.BUSY: 95.0}
    return list(low_occupancy(one(values | {getattr(metrics, name): value for name, value in changes.items()})))


def test_the_resource_that_limits_occupancy_is_named() -> None:
    (found,) = warps()
    assert found.evidence["limiter"] == "registers" and "limited by registers (200 per thread)" in found.claim
    assert found.evidence["shared memory"] == 3.0 and names([found]) == [("features.3", "forward")]


@pytest.mark.parametrize("changes", [{"OCCUPANCY": 50.0}, {"TENSOR": 80.0}, {"WAVES": 0.3}])
def test_low_occupancy_is_fine_with_a_saturated_unit_or_few_blocks(changes: dict[str, float]) -> None:
    assert warps(**changes) == []


def test_the_limiting_resource_is_the_least_of_those_recorded() -> None:
    rows, kernels, counters = recorded("features.1", "classifier.1")
    launches = Launches(kernels, counters)
    assert limiting_resource(launches[key("classifier.1")][0]) == "registers"
    assert limiting_resource(launches[key("features.1")][0]) in ("registers", "threads per block")
    assert limiting_resource(Launches(kernels)[rows[0].key][0]) == ""
