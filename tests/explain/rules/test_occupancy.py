import pytest
from tests.explain.recorded import counted, kernel, key, names, recorded, row, view

from lamina.explain import metrics
from lamina.explain.launches import Launches
from lamina.explain.rules.occupancy import device_not_filled, few_warps, limiter
from lamina.explain.view import STAKE, View
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
    found = list(device_not_filled(one({metrics.BUSY: busy, metrics.WAVES: waves})))
    assert [it.evidence[STAKE] for it in found] == ([pytest.approx(empty)] if empty else [])
    if empty:
        assert "40% empty" in found[0].claim and found[0].layer == "features.3"


def test_without_both_counters_nothing_is_said_of_the_grid() -> None:
    assert list(device_not_filled(one({metrics.BUSY: 10.0}))) == []
    assert list(device_not_filled(one({metrics.WAVES: 0.5}))) == []


def warps(**changes: float) -> list[Finding]:
    values = {metrics.OCCUPANCY: 12.0, metrics.WAVES: 3.0, metrics.BUSY: 95.0}
    return list(few_warps(one(values | {getattr(metrics, name): value for name, value in changes.items()})))


def test_the_resource_that_keeps_warps_out_is_named() -> None:
    (found,) = warps()
    assert found.evidence["limiter"] == "registers" and "registers allow no more (200 a thread)" in found.claim
    assert found.evidence["shared memory"] == 3.0 and names([found]) == [("features.3", "forward")]


@pytest.mark.parametrize("changes", [{"OCCUPANCY": 50.0}, {"TENSOR": 80.0}, {"WAVES": 0.3}])
def test_few_warps_are_no_fault_where_a_unit_is_busy_or_blocks_are_few(changes: dict[str, float]) -> None:
    assert warps(**changes) == []


def test_the_limiter_is_the_least_of_those_recorded() -> None:
    rows, kernels, counters = recorded("features.1", "classifier.1")
    launches = Launches(kernels, counters)
    assert limiter(launches[key("classifier.1")][0]) == "registers"
    assert limiter(launches[key("features.1")][0]) in ("registers", "threads per block")
    assert limiter(Launches(kernels)[rows[0].key][0]) == ""
