from dataclasses import replace

import pytest

from lamina.explain import roofline_of, rooflines
from lamina.record import LayerRun

from ..report.records import ROOFS, bench, failed, pick, timed

CONV = pick(bench(), "conv2")
ROOFS_BY_HAND = replace(ROOFS, copy_gbs=100.0, gemm_gflops={"fp32": 2_000.0}, launch_us=3.0)


def row(flops: int | None, moved: int | None, us: float, precision: str = "fp32") -> LayerRun:
    return timed(replace(CONV, flops=flops, bytes=moved, precision=precision), us)


def test_compute_bound_by_hand() -> None:
    it = roofline_of(row(40_000_000, 1_000_000, 40.0), ROOFS_BY_HAND)
    assert (it.intensity, it.bound) == (40.0, "compute")
    assert it.achieved_gflops == pytest.approx(1_000)
    assert it.attainable_gflops == pytest.approx(2_000)
    assert it.share == pytest.approx(0.5)


def test_memory_bound_by_hand() -> None:
    it = roofline_of(row(5_000_000, 1_000_000, 40.0), ROOFS_BY_HAND)
    assert (it.intensity, it.bound) == (5.0, "memory")
    assert it.achieved_gflops == pytest.approx(125)
    assert it.attainable_gflops == pytest.approx(500)
    assert it.share == pytest.approx(0.25)


def test_without_flops_the_share_is_by_bytes() -> None:
    it = roofline_of(row(0, 1_000_000, 40.0), ROOFS_BY_HAND)
    assert (it.bound, it.achieved_gflops, it.attainable_gflops) == ("memory", None, None)
    assert it.share == pytest.approx(25 / 100)


@pytest.mark.parametrize(("us", "bound"), [(5.9, "launch"), (6.1, "compute")])
def test_a_phase_of_few_launches_is_launch_bound(us: float, bound: str) -> None:
    it = roofline_of(row(4_000_000, 100_000, us), ROOFS_BY_HAND)
    assert it.bound == bound
    assert it.attainable_gflops == pytest.approx(2_000)


def test_every_kernel_is_a_launch() -> None:
    one = row(4_000_000, 100_000, 20.0)
    assert one.timing is not None
    many = replace(one, timing=replace(one.timing, kernels=4))
    assert (roofline_of(one, ROOFS_BY_HAND).bound, roofline_of(many, ROOFS_BY_HAND).bound) == ("compute", "launch")


@pytest.mark.parametrize(
    ("flops", "moved", "precision"),
    [(None, 1_000, "fp32"), (1_000, None, "fp32"), (1_000, 0, "fp32"), (9_000_000, 1_000, "fp16")],
    ids=["no operations known", "no bytes known", "no bytes", "no roof of that precision"],
)
def test_what_is_missing_makes_it_unknown(flops: int | None, moved: int | None, precision: str) -> None:
    it = roofline_of(row(flops, moved, 40.0, precision), ROOFS_BY_HAND)
    assert (it.bound, it.share, it.attainable_gflops) == ("unknown", None, None)


def test_without_a_time_or_roofs_it_is_unknown() -> None:
    assert roofline_of(failed(CONV), ROOFS).bound == "unknown"
    assert roofline_of(CONV, None).bound == "unknown"
    assert roofline_of(CONV, None).achieved_gflops == CONV.gflops


def test_every_row_is_below_its_roofline() -> None:
    rows = [*bench(), *bench("bf16")]
    placed = rooflines(rows, ROOFS)
    assert list(placed) == rows
    assert all(it.share is not None and 0.1 < it.share < 0.8 for it in placed.values())
    assert {row.kind for row, it in placed.items() if it.bound == "compute"} == {"convolution", "linear"}
