from dataclasses import replace

import pytest
from tests.explain.recorded import kernel, key, names, recorded, row, view, whole

from lamina.explain.rules.small import launch_overhead, layout_conversions, phase_launch_overhead, small_kernels
from lamina.explain.view import SAVING
from lamina.record import KernelRun, LayerRun, Timing

LAYOUT = "void cudnn::nchwToNhwcKernel<float>(int)"
GEMM = "sm90_xmma_fprop_implicit_gemm_f32f32"


def test_layout_conversions_are_summed_and_reported_per_phase() -> None:
    rows, kernels, _ = recorded()
    summary, *each = layout_conversions(view(rows, kernels))
    spent = sum(it.duration_us for it in kernels if "nchwToNhwc" in it.name or "nhwcToNchw" in it.name)
    total = sum(it.duration_us for it in kernels)
    assert summary.evidence["us"] == pytest.approx(spent)
    assert summary.evidence[SAVING] == pytest.approx(spent / total)
    assert names(each) == [("features.0", "backward_weight"), ("features.0", "forward"), ("features.3", "forward")]
    (longest,) = (it for it in kernels if "ImplicitGemmConvolution" in it.name)  # its name mentions transpositions
    assert longest.duration_us == pytest.approx(243.04)
    assert "channels-last" in summary.claim and each[0].claim.startswith("features.0 backward_weight spends 50%")


def test_few_layout_conversions_are_not_reported() -> None:
    of = key("features.3")
    made = [kernel(of, 99.0, GEMM), kernel(of, 1.0, LAYOUT, 1)]
    assert list(layout_conversions(view([row(of, 100.0)], made))) == []
    assert list(layout_conversions(view([row(of, 100.0)], made[:1]))) == []
    assert list(layout_conversions(view([row(of, 100.0)]))) == []
    linear = key("classifier.1")
    transposed = [kernel(linear, 50.0, GEMM), kernel(linear, 50.0, "void transpose_kernel<float>(int)", 1)]
    assert list(layout_conversions(view([row(linear, 100.0)], transposed))) == []


def many(us: float, count: int = 20) -> tuple[list[LayerRun], list[KernelRun]]:
    of = key("features.1")
    rest = kernel(key("features.3"), 900.0, GEMM)
    rows = [row(of, us * count), row(key("features.3"), 900.0)]
    return rows, [*(kernel(of, us, invocation=i) for i in range(count)), rest]


def test_small_kernels_are_counted_with_their_share() -> None:
    rows, kernels = many(3.0)
    (found,) = small_kernels(view(rows, kernels))
    assert found.evidence == pytest.approx({"kernels": 20, "of": 21, SAVING: 60 / 960})
    assert "20 of 21 kernels are shorter than 5.0 us" in found.claim and "features.1" in found.claim


@pytest.mark.parametrize(("us", "count"), [(6.0, 20), (3.0, 2)])
def test_long_or_few_kernels_are_not_reported(us: float, count: int) -> None:
    assert list(small_kernels(view(*many(us, count)))) == []


@pytest.mark.parametrize(("us", "gap"), [(1600.0, 0.4), (980.0, None), (800.0, None)])
def test_the_step_is_compared_with_its_kernels(us: float, gap: float | None) -> None:
    rows, kernels = many(3.0)
    found = list(launch_overhead(view([*rows, whole(us, rows)], kernels)))
    assert [it.evidence[SAVING] for it in found] == ([pytest.approx(gap)] if gap else [])
    if gap:
        assert "(30 us per kernel)" in found[0].claim


def test_a_step_with_unknown_kernels_is_not_compared() -> None:
    rows, kernels = many(3.0)
    assert list(launch_overhead(view([*rows, whole(1600.0, rows)], kernels[:-1]))) == []
    assert list(launch_overhead(view(rows, kernels))) == []


def clocked(us: float, clock: str) -> list[LayerRun]:
    made = row(key("features.3"), us)
    return [replace(made, timing=Timing(clock, "warm", us, 0.99 * us, 1.01 * us, 30))]


@pytest.mark.parametrize(
    ("us", "clock", "fires"), [(200.0, "events", True), (110.0, "events", False), (200.0, "cupti", False)]
)
def test_a_cpu_bound_phase_is_reported(us: float, clock: str, fires: bool) -> None:
    kernels = [kernel(key("features.3"), 100.0, GEMM)]
    found = list(phase_launch_overhead(view(clocked(us, clock), kernels)))
    assert names(found) == ([("features.3", "forward")] if fires else [])
    if fires:
        assert found[0].evidence[SAVING] == pytest.approx(0.5)
    assert list(phase_launch_overhead(view(clocked(us, clock)))) == []
