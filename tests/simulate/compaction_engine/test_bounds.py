"""Bounds by hand, and that no simulated run beats them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.hierarchy.conftest import TINY
from tests.simulate.small import product

from lamina.simulate.compaction_engine.bounds import bandwidth, bounds, peak
from lamina.simulate.compaction_engine.layer import CompactionEngine, compaction_engine
from lamina.simulate.hierarchy import preset


def test_the_device_of_the_study_by_hand() -> None:
    mi6 = preset("mi6")
    assert peak(mi6) == 36 * 64 * 2
    assert bandwidth(mi6) == pytest.approx(mi6.dram.channels * 64)
    silicon = preset("mi6-silicon")
    assert bandwidth(silicon) * silicon.clock_ghz == pytest.approx(224 * 0.96, rel=1e-3)  # refresh


def test_a_product_bound_by_multiplications_gains_what_it_skips() -> None:
    layer, mi6 = product(channels=64, made=512, images=16), preset("mi6")
    found = bounds(layer, mi6, 0.25, 1.0)
    assert found.dense == layer.operations / peak(mi6)
    assert found.mac_skip == 4
    assert found.roofline == pytest.approx(min(4, found.dense * bandwidth(mi6) / sum(layer.bytes)))


def test_a_product_bound_by_bytes_gains_by_lines() -> None:
    layer, mi6 = product(made=1), preset("mi6").changed({"dram.cycles_per_line": 1000.0})
    a, b, c = layer.bytes
    found = bounds(layer, mi6, 0.5, 0.75)
    assert found.dense == (a + b + c) / bandwidth(mi6)
    assert found.roofline == pytest.approx((a + b + c) / (a + 0.75 * b + c))
    assert found.roofline_compact == pytest.approx((a + b + c) / (a + 0.5 * b + c))


def test_nothing_but_zeros_has_no_bound_by_multiplications() -> None:
    assert bounds(product(), preset("mi6"), 0.0, 0.0).mac_skip == float("inf")


@settings(max_examples=8, deadline=None)
@given(st.sampled_from((0.0, 0.1, 0.5, 1.0)), st.sampled_from(("iid", "channel", "spatial")), st.booleans())
def test_no_run_is_faster_than_its_bound(density: float, pattern: str, narrow: bool) -> None:
    device, layer = preset("mi6").changed(TINY), product(made=64)
    settings_ = CompactionEngine(density=density, pattern=pattern, narrow=narrow, sib_kb=16, buffer_kb=16)
    run = compaction_engine(layer, device, settings_)
    limits = bounds(layer, device, run.counters["density"], run.counters["line_density"])
    assert run.cycles >= limits.skipping
    assert compaction_engine(layer, device, CompactionEngine(control="dense")).cycles >= limits.dense
