"""What is published of the unit: its figures can be simulated, and its cost is reported as printed."""

import pytest

from lamina.pipeline.reproduce.simulated import plan
from lamina.simulate.fission_unit import HARDWARE, FissionUnit
from lamina.spec.published import entry

SIMULATED = {
    "deftnn-figure-11": 10 * 3 * 3 * 2 * 2,
    "deftnn-figure-12": 10 * 3 * 3 * 2,
    "deftnn-figure-18": 10 * 3 * 2 * 2,
}
"""How many points: layers, tiles, and so on."""
LAYERS = {"AlexNet": 5, "CifarNet": 3, "LeNet-5": 2}


@pytest.mark.parametrize(("name", "points"), SIMULATED.items())
def test_each_point_is_a_layer_beside_the_same_kernel_on_fp32(name: str, points: int) -> None:
    published = entry(name)
    assert published.simulates is not None
    planned = plan(published, published.simulates, {})
    assert len(planned) == points
    for each in planned:
        ours, base = each.ours.options, each.baseline.options
        assert isinstance(ours, FissionUnit) and isinstance(base, FissionUnit)
        assert base.conversion == "fp32" != ours.conversion
        assert (base.tile, base.slow, each.baseline.device) == (ours.tile, ours.slow, each.ours.device)
        assert each.ours.gemm == each.baseline.gemm


@pytest.mark.parametrize("name", SIMULATED)
def test_each_printed_number_is_the_mean_of_six_networks(name: str) -> None:
    published = entry(name)
    assert published.simulates is not None
    points = list(published.simulates.points(published.recipe))
    for value in published.values:
        own = [point for point in points if point.matches(value.layer, value.where)]
        assert [point.work for point in own] == [f"{net} conv{i + 1}" for net, n in LAYERS.items() for i in range(n)]
        assert sum({point.work.split()[0]: point.networks for point in own}.values()) == 6


def test_the_use_of_six_networks_is_that_of_kernels_in_fp32() -> None:
    published = entry("deftnn-figure-2-simulated")
    assert published.simulates is not None
    planned = plan(published, published.simulates, {})
    assert len(planned) == 10 * 3 * 2
    assert {each.ours.config["conversion"] for each in planned} == {"fp32"}
    assert all(each.ours.key == each.baseline.key for each in planned)


def test_elimination_in_the_unit_keeps_half_of_the_inputs() -> None:
    figure = entry("deftnn-figure-13")
    assert figure.simulates is not None and "keep = 0.5" in figure.note
    assert [value.value for value in figure.values] == [2.1, 2.5, 2.6]


def test_cost_of_the_hardware_is_as_printed() -> None:
    assert (HARDWARE.area_mm2, HARDWARE.watts) == (1.20, 2.48)
    assert all(share < 0.01 for share in (*HARDWARE.area_shares, HARDWARE.power_share))
    assert "10.1145/3123939.3123970" in HARDWARE.source
