import pytest
from tests.explain.recorded import H200, counted, document, kernel, key, recorded, row

from lamina.explain import metrics
from lamina.explain.bounds import bound
from lamina.explain.launches import Launches

IDLE = {metrics.DRAM: 5.0, metrics.ISSUE: 5.0, metrics.L2: 5.0, metrics.TENSOR: 0.0, metrics.FMA: 5.0}


@pytest.mark.parametrize(
    ("layer", "phase", "expected", "unit"),
    [
        ("features.0", "forward", "on-chip", "shared memory"),
        ("features.1", "forward", "dram", "DRAM"),
        ("features.2", "backward_data", "compute", "instruction issue"),
        ("features.3", "forward", "compute", "tensor cores"),
        ("classifier.1", "forward", "on-chip", "shared memory"),
        ("classifier.1", "backward_weight", "compute", "instruction issue"),
        ("classifier.4", "forward", "latency", ""),
        ("classifier.2", "forward", "launch", ""),
    ],
)
def test_bottleneck_of_layers_with_counters(layer: str, phase: str, expected: str, unit: str) -> None:
    rows, kernels, counters = recorded()
    (of,) = (it for it in rows if (it.layer, it.phase) == (layer, phase))
    found = bound(of, Launches(kernels, counters)[of.key], H200)
    assert (found.kind, found.unit, found.source) == (expected, unit, "counters")
    assert 0 < found.share <= 1 and found.confidence == pytest.approx(0.9 * found.share)


def test_a_bound_lists_the_launches_that_have_its_limiter() -> None:
    rows, kernels, counters = recorded("features.0")
    found = bound(rows[0], Launches(kernels, counters)[rows[0].key], H200)
    convolution = max(document()["kernels"], key=lambda one: one["us"])
    assert [one.kernel.name for one in found.launches] == [convolution["name"]]
    assert found.share == pytest.approx(
        convolution["us"] / sum(it.duration_us for it in kernels if it.key == rows[0].key)
    )
    assert str(found) == "shared memory (89 %)"  # 88.05 % of the time, 99.01 % of it with warps


def test_utilization_is_of_the_kernels_the_unit_limits() -> None:
    rows, kernels, counters = recorded("features.3")
    found = bound(rows[0], Launches(kernels, counters)[rows[0].key], H200)
    # The bias's kernel is limited by computing too, but by instructions: it does not dilute the product's 88 %.
    assert len(found.launches) == 2 and str(found) == "tensor cores (88 %)"


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.DRAM, "dram"),
        (metrics.L2, "l2"),
        (metrics.SHARED, "on-chip"),
        (metrics.TENSOR, "compute"),
        (metrics.FMA, "compute"),
        (metrics.ISSUE, "compute"),
    ],
)
def test_the_busiest_unit_limits_once_saturated(metric: str, expected: str) -> None:
    one = kernel(key("x"), 50.0)
    for value, kind in ((80.0, expected), (55.0, "latency")):
        launches = Launches([one], counted(one, IDLE | {metric: value}))[key("x")]
        assert bound(row(key("x"), 50.0), launches, H200).kind == kind


def test_a_very_short_kernel_is_launch_bound() -> None:
    one = kernel(key("x"), 3.0)
    launches = Launches([one], counted(one, IDLE | {metrics.DRAM: 90.0}))[key("x")]
    assert bound(row(key("x"), 3.0), launches, H200).kind == "launch"
    assert bound(row(key("x"), 3.0), launches, None).kind == "dram"


def test_without_counters_the_roofline_decides_with_less_confidence() -> None:
    near = row(key("features.3"), 80.0)  # 64 us at the TF32 roof
    far = row(key("features.3"), 800.0)
    assert [bound(it, (), H200).kind for it in (near, far)] == ["compute", "compute"]
    assert bound(near, (), H200).confidence > bound(far, (), H200).confidence > 0
    assert bound(row(key("features.1"), 60.0), (), H200).kind == "dram"
    assert bound(row(key("features.1"), 3.0), (), H200).kind == "launch"
    assert bound(near, (), None).kind == "unknown" and bound(near, (), None).confidence == 0


def test_incomplete_counters_are_not_used() -> None:
    one = kernel(key("x"), 50.0)
    launches = Launches([one], counted(one, {metrics.DRAM: 90.0, metrics.ISSUE: None}))[key("x")]
    assert bound(row(key("x"), 50.0), launches, None).kind == "unknown"
