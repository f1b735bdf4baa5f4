"""A layer through the simulator: both implementations, and what narrower words, or the unit, can and cannot do."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.simulate.fission_unit.conftest import SMALL
from tests.simulate.small import product

from lamina.errors import UsageError
from lamina.record import SimRun
from lamina.simulate.fission_unit import CONVERSIONS, FissionUnit, fission_unit, tiled_gemm
from lamina.simulate.fission_unit.config import Packed
from lamina.simulate.fission_unit.unit import UNIT
from lamina.simulate.hierarchy import Device, bounds, preset, simulate
from lamina.simulate.jobs import unit
from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec.geometry import Conv2dGeometry

TITAN = preset("titanx-pascal").changed(SMALL)
CHAOS = 1.01
"""Waves drift apart differently when anything changes: less than this is no difference."""


def layer(m: int, n: int, k: int, groups: int = 1) -> ConvolutionGemm:
    return ConvolutionGemm("conv", m, n, k, groups, (1, k * groups, 1, n), Conv2dGeometry())


def cycles(device: Device, size: int = 384, **options: Any) -> int:
    return fission_unit(layer(size, size, 64), device, FissionUnit(**options)).cycles


@given(
    st.sampled_from([4, 6, 8]),
    st.sampled_from(CONVERSIONS),
    st.sampled_from(get_args(Packed)),
    st.booleans(),
    st.sampled_from(["banked", "ideal"]),
)
@settings(max_examples=8, deadline=None)
def test_both_implementations_agree(tile: Any, conversion: Any, packed: Any, double_buffer: bool, mode: str) -> None:
    device = TITAN.changed({"dram.mode": mode, "cu.count": 2, "translation.enabled": True})
    core, reference = (
        fission_unit(
            layer(96, 192, 32),
            device,
            FissionUnit(tile=tile, conversion=conversion, packed=packed, double_buffer=double_buffer, impl=impl),
        )
        for impl in ("core", "reference")
    )
    assert (core.cycles, core.counters) == (reference.cycles, reference.counters)


def test_counts_of_a_layer_by_hand(small: Device) -> None:
    """Two groups of 192 x 96 x 48: two workgroups of eight waves, three passes."""
    done = fission_unit(layer(190, 90, 40, groups=2), small, FissionUnit(conversion="dfu_cvt_16"))
    waves = 2 * 2 * 8
    assert done.counters["conversion_slots"] == waves * 3 * (96 + 6 * 3)
    assert done.kernel == "tiled-gemm[192,96,48,6x6,dfu_cvt_16,on-chip]"
    assert done.counters["multiplications"] == waves * 3 * 576 == 2 * 192 * 96 * 48 // 32
    assert done.counters["conversions"] == waves * 3 * (96 + 12)
    assert done.counters["shared_bytes"] == waves * 3 * 102 * 128
    assert done.counters["l1_reads"] == waves * (1 + 3 * 24)
    assert done.counters["l1_writes"] == waves * 72 == 2 * 192 * 96 * 4 // 64
    assert done.counters["lds_ticks"] == waves * 3 * 102 * 64
    assert done.counters["valu_ticks"] == 64 * waves * (40 + 36 + 3 * (576 + 4 + 96 + 6 * 3))


def test_groups_run_one_after_another(small: Device) -> None:
    one, two = (fission_unit(layer(64, 64, 32, groups), small, FissionUnit(tile=4)) for groups in (1, 2))
    assert two.cycles == 2 * one.cycles
    rates = {name: value for name, value in one.counters.items() if name.endswith("_use")}
    assert two.counters == {name: 2 * value for name, value in one.counters.items()} | rates


def test_time_is_between_its_bounds(small: Device) -> None:
    options = FissionUnit(tile=4)
    device = options.on(small)
    run = simulate(tiled_gemm(256, 256, 64, options, device), device)
    least, most = bounds(run)
    assert least <= run.cycles <= most


@pytest.mark.parametrize("tile", [4, 6, 8])
@pytest.mark.parametrize("packed", ["on-chip", "everywhere"])
def test_wider_words_are_never_faster_where_shared_memory_binds(small: Device, tile: int, packed: str) -> None:
    slow = small.changed({"cu.lds_busy": 16.0})
    wide, half, quarter = (
        cycles(slow, tile=tile, packed=packed, conversion=each) for each in ("fp32", "dfu_cvt_16", "dfu_cvt_8")
    )
    assert wide > 1.9 * half > 3.6 * quarter  # by 2 and 4, less what a wave does before and after


@pytest.mark.parametrize("tile", [4, 6, 8])
@pytest.mark.parametrize("packed", get_args(Packed))
@pytest.mark.parametrize("slow", ["serial", "overlapped"])
def test_the_unit_is_never_slower_than_software(small: Device, tile: int, packed: str, slow: str) -> None:
    at = {"tile": tile, "packed": packed, "slow": slow}
    sixteen = cycles(small, conversion="dfu_cvt_16", **at)
    assert sixteen <= CHAOS * cycles(small, conversion="deft-16q", **at)
    assert sixteen <= CHAOS * cycles(small, conversion="deft-16", **at)
    assert sixteen <= CHAOS * cycles(small, conversion="ieee-half", **at)
    assert cycles(small, conversion="dfu_cvt_8", **at) <= CHAOS * cycles(small, conversion="8-bit", **at)


@pytest.mark.parametrize("conversion", ["dfu_cvt_16", "dfu_cvt_8", "deft-16q"])
def test_nothing_is_gained_where_products_bind(small: Device, conversion: str) -> None:
    fast = small.changed({"cu.lds_busy": 0.25})
    assert cycles(fast, tile=8, conversion=conversion) >= cycles(fast, tile=8, conversion="fp32")


def test_packing_off_chip_leaves_shared_memory_as_it_was(small: Device) -> None:
    def run(packed: str) -> SimRun:
        options = FissionUnit(tile=4, conversion="deft-16", packed=packed)  # type: ignore[arg-type]
        return fission_unit(layer(256, 256, 64), small, options)

    plain = fission_unit(layer(256, 256, 64), small, FissionUnit(tile=4, conversion="fp32"))
    off_chip, on_chip = run("off-chip"), run("on-chip")
    assert off_chip.counters["lds_ticks"] == plain.counters["lds_ticks"] == 2 * on_chip.counters["lds_ticks"]
    arguments = plain.counters["l1_writes"] // (4 * 4 * 2)  # a line a wave
    assert 2 * (off_chip.counters["l1_reads"] - arguments) == plain.counters["l1_reads"] - arguments
    assert on_chip.cycles < off_chip.cycles


def test_a_kernel_that_waits_for_its_own_instructions_is_slower(small: Device) -> None:
    assert FissionUnit(pipelined=False).on(small) == small
    assert cycles(small, pipelined=False) > cycles(small)


def test_sampling_tells_its_interval(small: Device) -> None:
    options = FissionUnit(tile=8, sampling=True, sets=40)
    done = fission_unit(layer(128, 16384, 32), small, options)
    whole = fission_unit(layer(128, 16384, 32), small, options.model_copy(update={"sampling": False}))
    assert done.sampled and done.relative_error is not None
    assert abs(done.cycles / whole.cycles - 1) <= max(0.05, done.relative_error)
    assert done.counters["l1_reads"] == whole.counters["l1_reads"]


def test_it_is_a_unit_that_adds_no_memory(small: Device) -> None:
    assert unit("fission-unit") is UNIT
    assert UNIT.memory(small, FissionUnit()) == 0
    assert UNIT.run(product(), small, FissionUnit(tile=4), None).counters["l1_reads"] == 2 * 8 * (1 + 2 * 16)


def test_what_does_not_fit_is_rejected(small: Device) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        fission_unit(product(), small.changed({"cu.vector_registers": 64}), FissionUnit())
    for wrong in ({"tile": 5}, {"conversion": "dfu_cvt_9"}, {"packed": "in-between"}, {"pipelined": 1}):
        with pytest.raises(ValidationError):
            FissionUnit(**wrong)  # type: ignore[arg-type]
