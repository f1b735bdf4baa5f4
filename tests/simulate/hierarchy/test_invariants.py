"""What holds for every run: bytes are conserved, time has bounds, more machine is never slower."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.hierarchy.conftest import TINY, devices, programs

from lamina.simulate.hierarchy import Device, Program, bounds, gemm, preset, simulate
from lamina.simulate.hierarchy.program import LOAD, STORE

SIZES = st.sampled_from((32, 64, 96, 128))


@settings(max_examples=100)
@given(device=devices(), program=programs())
def test_every_line_is_accounted_for(device: Device, program: Program) -> None:
    c = simulate(program, device).counters
    assert c["l1_reads"] == program.requests(LOAD) == c["l1_hits"] + c["l1_mshr_hits"] + c["l1_misses"]
    assert c["l1_writes"] == program.requests(STORE) == c["l2_writes"]
    assert c["l2_reads"] == c["l1_misses"] + len(program.image)
    assert c["l2_reads"] == c["l2_hits"] + c["l2_mshr_hits"] + c["l2_misses"]
    assert c["dram_reads"] == c["l2_misses"]
    assert c["dram_writes"] == c["l2_write_backs"] <= c["l2_writes"]
    assert c["dram_bytes"] == 64 * (c["dram_reads"] + c["dram_writes"])


@settings(max_examples=100)
@given(device=devices(), program=programs())
def test_time_lies_between_its_bounds(device: Device, program: Program) -> None:
    run = simulate(program, device)
    least, most = bounds(run)
    assert least <= run.cycles <= most
    assert (run.finished >= 0).all()


BINDING: dict[str, dict[str, Any]] = {
    "memory": {"dram.cycles_per_line": 100.0, "dram.channels": 1},
    "banked memory": {"dram.mode": "banked", "dram.burst_ns": 100.0, "dram.channels": 1},
    "L1 ports": {"l1.lines_per_cycle": 0.01},
    "scratchpad": {"cu.lds_busy": 200.0, "cu.lds_cycles": 200.0},
    "vector units": {"cu.valu_busy": 50.0, "cu.valu_cycles": 50.0},
}


@pytest.mark.parametrize("settings_", BINDING.values(), ids=BINDING)
def test_the_scarcest_part_decides_the_time(settings_: dict[str, Any]) -> None:
    """A part that were used twice at a time would be done sooner than its bound says."""
    run = simulate(gemm(64, 256, 64), preset("mi6").changed({**TINY, **settings_}))
    least, _ = bounds(run)
    assert 0.8 * run.cycles <= least <= run.cycles


@settings(max_examples=25)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_gemm_reads_each_line_once_when_l2_holds_it(m: int, n: int, k: int) -> None:
    run = simulate(gemm(m, n, k), preset("mi6").changed({"cu.count": 3}))
    assert run.counters["dram_reads"] == k * n // 16 + 32 * k // 16 + 32
    corrected = simulate(gemm(m, n, k, "corrected"), preset("mi6").changed({"cu.count": 3}))
    assert corrected.counters["dram_reads"] == k * n // 16 + m * k // 16 + 32


@settings(max_examples=25)
@given(n=SIZES, k=SIZES, device=devices())
def test_a_small_l2_never_reads_fewer_lines(n: int, k: int, device: Device) -> None:
    run = simulate(gemm(64, n, k), device.changed({"translation.l2_entries": 1024}))
    assert run.counters["dram_reads"] >= k * n // 16 + 32 * k // 16 + 32


ANOMALY = 1.02
"""The order of events may make a better machine slower by so much, never by more."""

MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bandwidth": ({"dram.cycles_per_line": 16.0}, {"dram.cycles_per_line": 8.0}),
    "channels": ({"dram.cycles_per_line": 16.0}, {"dram.cycles_per_line": 16.0, "dram.channels": 4}),
    "L2 banks": ({"l2.lines_per_cycle": 0.1}, {"l2.lines_per_cycle": 0.1, "l2.banks": 4, "l2.ways": 2}),
    "L2 ways": ({"l2.bytes": 8192, "l2.ways": 2}, {"l2.bytes": 16384, "l2.ways": 4}),
    "L2 MSHRs": ({"l2.mshrs": 1}, {"l2.mshrs": 2}),
    "L1 MSHRs": ({"l1.mshrs": 2}, {"l1.mshrs": 4}),
    "L1 ports": ({"l1.lines_per_cycle": 0.25}, {"l1.lines_per_cycle": 0.5}),
    "walkers": ({"translation.walkers": 1}, {"translation.walkers": 2}),
    "memory latency": ({"dram.latency": 400.0}, {"dram.latency": 200.0}),
}


@pytest.mark.parametrize(("less", "more"), MORE.values(), ids=MORE)
@pytest.mark.parametrize("shape", [(64, 256, 64), (32, 512, 96)], ids=str)
def test_more_of_a_resource_is_never_slower(
    less: dict[str, Any], more: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    tiny = preset("mi6").changed(TINY)
    slow, fast = (simulate(gemm(*shape), tiny.changed(settings)).cycles for settings in (less, more))
    assert fast <= ANOMALY * slow


@settings(max_examples=20)
@given(device=devices(), program=programs())
def test_equal_runs_are_equal(device: Device, program: Program) -> None:
    one, two = simulate(program, device), simulate(program, device)
    assert one.cycles == two.cycles and one.counters == two.counters
    assert np.array_equal(one.finished, two.finished)


def test_without_limits_only_vector_instructions_are_left() -> None:
    endless = preset("mi6").changed(
        {
            "cu.count": 1, "cu.lds_busy": 1e-3, "cu.lds_cycles": 1e-3, "cu.scalar_cycles": 0, "cu.vmem_issue": 0,
            "cu.vmem_path": 0, "cu.valu_busy": 5.0, "launch_cycles": 0, "dispatch_cycles": 0, "l1.hit": 0,
            "l1.write": 0, "l1.to_l2": 0, "l1.fill": 0, "l1.lines_per_cycle": 1e3, "translation.enabled": False,
            "l2.hit": 0, "l2.write": 0, "l2.miss": 0, "dram.latency": 0, "dram.cycles_per_line": 0.01,
        }
    )  # fmt: skip
    run = simulate(gemm(32, 128, 64), endless)
    vector = 40 + 33 + 27 + 2 * 924
    assert run.cycles == pytest.approx(5 * vector, rel=0.01)
