"""What the readable simulator must do on cases small enough to add up by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.simulate.hierarchy.conftest import TINY

from lamina.simulate.hierarchy import Device, Phase, Program, preset, simulate
from lamina.simulate.hierarchy.program import END, LDS, LOAD, STORE, VALU, WAIT

BARE = {**TINY, "cu.count": 1, "translation.enabled": False, "cu.scalar_cycles": 3.0}


@pytest.fixture
def bare() -> Device:
    return preset("mi6").changed(BARE)


def kernel(*phases: Phase, workgroups: int = 1, lds_bytes: int = 4096) -> Program:
    return Program(
        name="by hand",
        before=(*phases, Phase(END, 1)),
        loop=(),
        after=(),
        rows=1,
        columns=workgroups,
        trips=np.ones(workgroups, dtype=np.int64),
        bytes=1 << 16,
        instructions_per_workgroup=1,
        instructions_per_trip=0,
        registers=16,
        lds_bytes=lds_bytes,
    )


def load(line: int, lines: int = 1, kind: int = LOAD, rows: int = 1, pitch: int = 64) -> Phase:
    return Phase(kind, 1, base=64 * line, rows=rows, pitch=pitch, lines=lines)


def cycles(device: Device, *phases: Phase, workgroups: int = 1) -> int:
    return simulate(kernel(*phases, workgroups=workgroups), device, impl="reference").cycles


def test_a_lone_wave_costs_the_sum_of_its_phases(bare: Device) -> None:
    assert cycles(bare, Phase(VALU, 10, scalar=2)) == 10 * 5 + 2 * 3
    assert cycles(bare, Phase(VALU, 10), Phase(LDS, 3)) == 10 * 5 + 3 * 17


def test_a_load_costs_its_way_through_every_level(bare: Device) -> None:
    first = 18 + 5 + 17 + 100  # path, L1 to L2 and back, L2 miss, memory
    assert cycles(bare, load(0), Phase(WAIT)) == first
    again = 18 + 24  # path, L1 hit
    ready = 5 + 17 + 100 + 19  # and the line unlocked
    assert cycles(bare, load(0), Phase(WAIT), Phase(VALU, 10), load(0), Phase(WAIT)) == first + 50 + again
    assert ready < first + 50


def test_a_store_needs_no_memory(bare: Device) -> None:
    run = simulate(kernel(load(0, kind=STORE), Phase(WAIT)), bare, impl="reference")
    assert run.cycles == 18 + 5 + 12
    assert (run.counters["dram_reads"], run.counters["l2_writes"]) == (0, 1)


def test_a_load_of_a_line_on_its_way_waits_for_it(bare: Device) -> None:
    run = simulate(kernel(load(0), load(0), Phase(WAIT)), bare, impl="reference")
    assert run.counters["l1_mshr_hits"] == 1
    assert run.cycles == 18 + 5 + 17 + 100


def test_a_full_set_waits_until_a_line_is_unlocked(bare: Device) -> None:
    device = bare.changed({"l1.bytes": 64, "l1.ways": 1})
    first = 5 + 17 + 100
    assert cycles(device, load(0), load(7), Phase(WAIT)) == first + 19 + first + 18


def test_a_page_is_walked_once(bare: Device) -> None:
    device = bare.changed({"translation.enabled": True})
    run = simulate(kernel(load(0), load(1), Phase(WAIT)), device, impl="reference")
    assert run.counters["page_walks"] == 1
    assert run.cycles == 10 + 100 + 600 + 1 + 5 + 17 + 100 + 18  # the second line is a cycle behind


def test_walkers_take_turns(bare: Device) -> None:
    device = bare.changed({"translation.enabled": True, "translation.walkers": 1})
    one = cycles(device, load(0), Phase(WAIT))
    two = cycles(device, load(0, rows=2, pitch=4096), Phase(WAIT))
    assert two == one + 100


def test_waves_share_a_simd(bare: Device) -> None:
    device = bare.changed({"cu.simds": 1, "dispatch_cycles": 0.0})
    assert cycles(device, Phase(VALU, 100), workgroups=2) == pytest.approx(2 * 100 * 4, abs=1)
    assert cycles(device, Phase(VALU, 100), workgroups=3) == pytest.approx(2 * 100 * 4 + 100 * 5, abs=2)


def test_the_scratchpad_serves_one_at_a_time(bare: Device) -> None:
    device = bare.changed({"dispatch_cycles": 0.0})
    assert cycles(device, Phase(LDS, 10), workgroups=4) == 3 * 10 * 12 + 10 * 17


def test_loads_return_in_order_when_they_must(bare: Device) -> None:
    waves: Sequence[Phase] = (load(0), Phase(WAIT))
    assert cycles(bare, *waves, workgroups=1) == 140
    slow_then_fast = (load(0), Phase(WAIT), Phase(VALU, 4), load(40), load(0), Phase(WAIT))
    in_order = simulate(kernel(*slow_then_fast), bare, impl="reference")
    assert in_order.cycles == 140 + 20 + 140


def test_a_stream_reaches_the_rate_of_memory(bare: Device) -> None:
    device = bare.changed({"dram.cycles_per_line": 20.0, "dram.channels": 1, "l2.banks": 1, "l2.bytes": 8192})
    lines = 40
    run = simulate(kernel(load(0, 20), load(20, 20), Phase(WAIT)), device, impl="reference")
    assert run.counters["dram_reads"] == lines
    assert lines * 20 <= run.cycles <= 1.25 * lines * 20
