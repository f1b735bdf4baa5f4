"""Use of the device's components by a product: by hand, and within bounds for any kernel."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.fission_unit.conftest import SMALL

from lamina.simulate.fission_unit import CONVERSIONS, FissionUnit, fission_unit
from lamina.simulate.fission_unit.config import Packed
from lamina.simulate.hierarchy import Device, preset
from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec.geometry import Conv2dGeometry

TITAN = preset("titanx-pascal").changed(SMALL)
USES = ("on_chip_use", "off_chip_use", "arithmetic_use", "conversion_use")


def product(m: int, n: int, k: int, groups: int = 1) -> ConvolutionGemm:
    return ConvolutionGemm("conv", m, n, k, groups, (1, k * groups, 1, n), Conv2dGeometry())


def test_use_by_hand(small: Device) -> None:
    """A 6 x 6 kernel reads 12 and stages 1.5 words a step of k for 36 multiplications."""
    done = fission_unit(product(96, 96, 64), small, FissionUnit(tile=6, conversion="fp32"))
    waves, cu = 8, small.cu
    multiplications = waves * 64 * 36
    assert done.counters["arithmetic_use"] == pytest.approx(
        multiplications * cu.valu_busy / (cu.count * cu.simds) / done.cycles
    )
    words = waves * 64 * (12 + 2 * 16 * 6 / (8 * 32))
    assert done.counters["on_chip_use"] == pytest.approx(words * cu.lds_busy / cu.count / done.cycles)
    assert done.counters["conversion_use"] == 0


@given(
    st.sampled_from([4, 6, 8]), st.sampled_from(CONVERSIONS), st.sampled_from(get_args(Packed)),
    st.sampled_from(["banked", "ideal"]), st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_no_component_is_busy_longer_than_the_product_takes(
    tile: Any, conversion: Any, packed: Any, mode: str, groups: int
) -> None:
    device = TITAN.changed({"dram.mode": mode})
    layer = product(100, 130, 40, groups=groups)
    done = fission_unit(layer, device, FissionUnit(tile=tile, conversion=conversion, packed=packed))
    assert all(0 <= done.counters[name] <= 1 for name in USES)
    alone = fission_unit(product(100, 130, 40), device, FissionUnit(tile=tile, conversion=conversion, packed=packed))
    assert [done.counters[name] for name in USES] == [alone.counters[name] for name in USES]
    assert (done.counters["conversion_use"] > 0) == (done.counters["conversion_slots"] > 0)
