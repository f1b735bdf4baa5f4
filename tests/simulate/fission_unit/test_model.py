"""The closed form: the bounds of a register tile by hand, and beside the simulation."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.simulate.fission_unit import CONVERSIONS, FissionUnit, fission_unit, predict
from lamina.simulate.hierarchy import Device, preset
from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec.geometry import Conv2dGeometry

TITAN = preset("titanx-pascal")
WITHIN = 0.10
"""Of the simulation, before a memory that is not in the way."""
DEEP = 16 * 64
"""So deep that what a wave does before and after hardly counts."""


def predicted(device: Device = TITAN, size: int = 192, k: int = DEEP, **options: Any) -> Any:
    chosen = FissionUnit(**options)
    return predict(size, size, k, chosen, chosen.on(device))


@pytest.mark.parametrize(
    ("tile", "vector", "shared"),
    [(4, 16 / 4, 8), (6, 36 / 4, 12), (8, 64 / 4, 16)],  # cycles a step of k: tile ** 2 products, 2 tile words
)
def test_a_register_tile_balances_products_and_words(tile: int, vector: float, shared: float) -> None:
    one = TITAN.changed({"cu.count": 1})
    size = 384
    parts = predicted(one, size=size, tile=tile, conversion="fp32").parts
    steps = (size / (16 * tile)) ** 2 * 8 * DEEP
    assert parts.vector / steps == pytest.approx(vector, rel=0.05)
    assert parts.shared / steps == pytest.approx(shared * (1 + 1 / 16), rel=0.001)


@pytest.mark.parametrize(
    ("tile", "conversion", "limit"),
    [(4, "fp32", "shared"), (6, "fp32", "shared"), (6, "dfu_cvt_16", "vector"), (8, "dfu_cvt_8", "vector")],
)
def test_what_limits_a_large_product(tile: int, conversion: str, limit: str) -> None:
    assert predicted(size=3072, tile=tile, conversion=conversion).limit == limit


def test_memory_limits_what_has_no_reuse() -> None:
    slow = TITAN.changed({"dram.burst_ns": 400.0})
    wide, narrow = (predicted(slow, conversion=each, packed="everywhere", size=96) for each in ("fp32", "dfu_cvt_16"))
    assert wide.limit == narrow.limit == "dram"
    lines = 4 * 2 * 96 * DEEP / 64 / 2
    assert wide.parts.dram - narrow.parts.dram == pytest.approx(lines / 12 * 400 * 1.417 / 0.96, rel=1e-4)


def test_one_wave_waits_for_what_it_asked_for() -> None:
    patient, eager = (predicted(size=96, double_buffer=each, tile=4) for each in (False, True))
    assert patient.limit == "waves"
    assert patient.parts.waves > eager.parts.waves


@given(st.sampled_from([4, 6, 8]), st.sampled_from(["on-chip", "everywhere", "off-chip"]), st.integers(64, 1024))
@settings(max_examples=25, deadline=None)
def test_more_of_a_part_is_never_more_busy(tile: Any, packed: Any, size: int) -> None:
    for conversion in CONVERSIONS:
        at = {"size": size, "k": 64, "tile": tile, "packed": packed, "conversion": conversion}
        plain = predicted(**at)
        assert predicted(TITAN.changed({"cu.lds_busy": 0.5}), **at).parts.shared <= plain.parts.shared
        assert predicted(TITAN.changed({"cu.count": 56}), **at).parts.vector <= plain.parts.vector
        assert predicted(**{**at, "slow": "overlapped"}).parts.vector <= plain.parts.vector
        assert plain.cycles >= TITAN.launch_cycles


@pytest.mark.parametrize("tile", [4, 6, 8])
@pytest.mark.parametrize("conversion", ["fp32", "deft-16q", "dfu_cvt_16", "dfu_cvt_8"])
def test_the_simulation_is_near(small: Device, tile: int, conversion: str) -> None:
    options = FissionUnit(tile=tile, conversion=conversion)  # type: ignore[arg-type]
    layer = ConvolutionGemm("conv", 768, 768, 128, 1, (1, 128, 1, 768), Conv2dGeometry())
    done = fission_unit(layer, small, options)
    expected = predict(768, 768, 128, options, options.on(small)).cycles
    assert done.counters["predicted_cycles"] == expected
    assert abs(expected / done.cycles - 1) <= WITHIN
