"""The compiled simulator equals the readable one, whole number for whole number."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from tests.simulate.hierarchy.conftest import TINY, devices, programs

from lamina.errors import UsageError
from lamina.simulate.hierarchy import Device, DramMemory, Program, gemm, preset, simulate
from lamina.simulate.hierarchy.reference_memory import Below, Dram
from lamina.simulate.hierarchy.state import Table
from lamina.simulate.hierarchy.timing import dram_timing_of


@settings(max_examples=120)
@given(device=devices(), program=programs())
def test_core_is_the_reference(device: Device, program: Program) -> None:
    core, reference = (simulate(program, device, impl=impl) for impl in ("core", "reference"))
    assert core.cycles == reference.cycles
    assert core.counters == reference.counters
    assert np.array_equal(core.finished, reference.finished)
    assert (core.impl, reference.impl) == ("core", "reference")


@pytest.mark.parametrize("name", ["mi6", "mi6-silicon", "r9nano", "titanx-pascal", "h200-like"])
def test_core_is_the_reference_on_every_preset(name: str) -> None:
    device, program = preset(name).changed({"cu.count": 2}), gemm(64, 128, 64)
    core, reference = (simulate(program, device, impl=impl) for impl in ("core", "reference"))
    assert (core.cycles, core.counters) == (reference.cycles, reference.counters)


def test_more_lines_than_a_word_counts_are_rejected(tiny: Device) -> None:
    program = gemm(32, 32, 32)
    again = tuple(replace(phase, per_trip=0) for phase in program.loop)  # the same lines, over and over
    endless = replace(program, loop=again, trips=np.array([2**47], dtype=np.int64))
    with pytest.raises(UsageError, match=r"requests \d+ lines of \d+ bytes: expected fewer than"):
        simulate(endless, tiny)


def test_stopping_and_going_on_changes_nothing(tiny: Device) -> None:
    told: list[float] = []
    program = gemm(128, 128, 32)
    watched = simulate(program, tiny, progress=told.append)
    assert watched.cycles == simulate(program, tiny).cycles
    assert told == sorted(told) and told[-1] == 1.0 and len(told) == program.workgroups


@settings(max_examples=60)
@given(device=devices())
def test_memory_is_the_reference_s(device: Device) -> None:
    from lamina.simulate.hierarchy import core

    rng = np.random.default_rng(0)
    readable, table = Dram(dram_timing_of(device)), DramMemory(device).compiled()[1]
    for now, address in zip(np.cumsum(rng.integers(0, 300, 200)), rng.integers(0, 2**20, 200), strict=True):
        line = int(address) // 64 * 64
        assert readable.read(int(now), line, 0) == _call(core.dram, table, int(now), line)
    assert DramMemory(device).counters(readable) == DramMemory(device).counters(table)


def _call(function: object, table: Table, now: int, address: int) -> int:
    """A compiled part as Python sees it, its table handed over as a pointer."""
    import ctypes

    pointer = table.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
    return function.py_func(pointer, now, address, 0)  # type: ignore[attr-defined, no-any-return]


class Marked(DramMemory):
    """A part in front of memory that keeps what it was asked for."""

    seen: list[tuple[int, int]]

    def reference(self) -> Below:  # type: ignore[override]
        memory, seen = super().reference(), self.seen

        class Watch:
            def read(self, now: int, address: int, mark: int) -> int:
                seen.append((address, mark))
                return memory.read(now, address, mark)

            def write(self, now: int, address: int) -> None:
                memory.write(now, address)

        return Watch()

    def counters(self, part: Below | Table) -> dict[str, int]:
        return {"asked": len(self.seen)}


def test_a_part_goes_between_l2_and_memory() -> None:
    device = preset("mi6").changed(TINY)
    part = Marked(device)
    object.__setattr__(part, "seen", [])
    run = simulate(gemm(32, 32, 32), device, impl="reference", memory=part)
    assert run.counters["asked"] == run.counters["l2_misses"] == len(set(part.seen))
    assert run.cycles == simulate(gemm(32, 32, 32), device, impl="reference").cycles
