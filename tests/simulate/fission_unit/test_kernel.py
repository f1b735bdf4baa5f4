"""Counts by hand, and which lines a kernel touches."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import SpecError
from lamina.simulate.fission_unit import Kernel, one_pass, tiled_gemm
from lamina.simulate.fission_unit.config import Packed
from lamina.simulate.fission_unit.formats import CONVERSIONS, Conversion
from lamina.simulate.fission_unit.kernel import registers, shared_bytes
from lamina.simulate.hierarchy import Device, Phase, Program, occupancy, preset
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.program import LDS, LOAD, STORE, VALU

KERNELS = st.builds(
    Kernel,
    tile=st.sampled_from([4, 6, 8]),
    conversion=st.sampled_from(CONVERSIONS),
    packed=st.sampled_from(get_args(Packed)),
    double_buffer=st.booleans(),
    slow=st.sampled_from(["serial", "overlapped"]),
)
TITAN = preset("titanx-pascal")


def titan_program(kernel: Kernel, sides: tuple[int, int] = (1, 1), k: int = 32) -> Program:
    return tiled_gemm(sides[0] * kernel.side, sides[1] * kernel.side, k, kernel, TITAN)


def loop(program: Program, kind: int) -> int:
    return sum(phase.count for phase in program.loop if phase.kind == kind)


@pytest.mark.parametrize(
    ("tile", "conversion", "fma", "read", "written", "unpacking", "packing", "lines"),
    [
        # 16 steps of k: tile ** 2 products and 2 tile values each; 2 tile values a lane on their way
        (4, "fp32", 256, 128, 8, 0, 0, 16),
        (6, "fp32", 576, 192, 12, 0, 0, 24),
        (8, "fp32", 1024, 256, 16, 0, 0, 32),
        (4, "dfu_cvt_16", 256, 64, 4, 64, 2 * 4, 16),
        (6, "dfu_cvt_16", 576, 96, 6, 96, 2 * 6, 24),
        (8, "dfu_cvt_8", 1024, 64, 4, 64, 18 * 4, 32),
        (6, "dfu_cvt_8", 576, 48, 3, 48, 18 * 3, 24),
        (6, "deft-16", 576, 96, 6, 2 * 96, 2 * 6, 24),
        (6, "deft-16q", 576, 96, 6, 96, 2 * 6, 24),
        (6, "ieee-half", 576, 96, 6, 2 * 96, 4 * 6, 24),
        (4, "8-bit", 256, 32, 2, 15 * 32, 18 * 2, 16),
    ],
)
def test_counts_of_a_pass(
    tile: int, conversion: Conversion, fma: int, read: int, written: int, unpacking: int, packing: int, lines: int
) -> None:
    each = one_pass(Kernel(tile=tile, conversion=conversion))  # type: ignore[arg-type]
    assert (each.fma, each.words_read, each.words_written, each.lines) == (fma, read, written, lines)
    assert each.conversions == unpacking + packing
    assert each.shared_bytes == 128 * (read + written)


def test_where_words_are_packed_decides_what_shrinks() -> None:
    on_chip, everywhere, off_chip = (
        one_pass(Kernel(conversion="deft-16", packed=packed)) for packed in get_args(Packed)
    )
    assert (on_chip.words_read, on_chip.lines) == (96, 24)
    assert (everywhere.words_read, everywhere.lines) == (96, 12)
    assert (off_chip.words_read, off_chip.lines) == (192, 12)
    # packed on chip: two to pack each of 6 words; everywhere: packed before; off chip: taken apart once, not 16 times
    assert [each.conversions for each in (on_chip, everywhere, off_chip)] == [2 * 96 + 2 * 6, 2 * 96, 2 * 6]


def test_shared_memory_and_registers_by_hand() -> None:
    """A tile of A and one of B: 2 x 96 x 16 values, over eight waves."""
    assert shared_bytes(Kernel(conversion="fp32", double_buffer=False)) == 2 * 96 * 16 * 4 // 8
    assert shared_bytes(Kernel(conversion="fp32")) == 3072
    assert shared_bytes(Kernel(conversion="dfu_cvt_8")) == 768
    assert registers(Kernel(conversion="fp32")) == 36 + 24 + 12 + 16
    assert registers(Kernel(conversion="dfu_cvt_16")) == 36 + 24 + (6 * 2 + 2) + 12 + 16
    assert occupancy(titan_program(Kernel(conversion="fp32")), TITAN) == 4 * (512 // 88)


@given(KERNELS)
@settings(max_examples=60, deadline=None)
def test_a_program_does_what_its_pass_counts(kernel: Kernel) -> None:
    program, each = titan_program(kernel), one_pass(kernel)
    assert loop(program, LDS) == each.words_read + each.words_written
    assert loop(program, VALU) == each.slots(kernel.slow)
    assert sum(phase.rows * phase.lines for phase in program.loop if phase.kind == LOAD) == each.lines
    assert program.trips.tolist() == [2] * 8
    vector = program.instructions_per_trip - sum(
        phase.scalar + (0 if phase.kind == VALU else phase.count) for phase in program.loop
    )
    assert vector == each.fma + each.conversions + 4


@given(KERNELS, st.tuples(st.integers(1, 3), st.integers(1, 3)))
@settings(max_examples=40, deadline=None)
def test_a_workgroup_touches_every_line_of_its_tiles_once(kernel: Kernel, sides: tuple[int, int]) -> None:
    program = titan_program(kernel, sides)
    panel = kernel.side * 32 * 4 // kernel.in_memory // LINE
    tile = kernel.side * kernel.side * 4 // LINE
    owners: dict[tuple[int, str], set[int]] = {}
    for group in range(program.workgroups // 8):
        waves = [8 * group + wave for wave in range(8)]
        row, column = divmod(group, program.columns // 8)
        load_a, load_b = (phase for phase in program.loop if phase.kind == LOAD)
        for name, own, phase, index in (("a", column, load_a, 0), ("b", row, load_b, 1)):
            touched = Counter(line for wave in waves for trip in range(2) for line in lines(program, phase, wave, trip))
            assert set(touched.values()) == {1} and len(touched) == panel
            assert max(touched) - min(touched) == panel - 1, "a panel lies in one piece"
            assert owners.setdefault((own, name), set(touched)) == set(touched), f"indexed by {index}"
        stored = Counter(
            line
            for wave in waves
            for phase in program.after
            if phase.kind == STORE
            for line in lines(program, phase, wave, 0)
        )
        assert set(stored.values()) == {1} and len(stored) == tile
        assert owners.setdefault((group, "c"), set(stored)) == set(stored)
    everything = [line for found in owners.values() for line in found]
    assert len(everything) == len({*everything}), "panels and tiles do not overlap"


def lines(program: Program, phase: Phase, wave: int, trip: int) -> list[int]:
    """As the readable simulator finds them."""
    row, column = divmod(wave, program.columns)
    first = phase.base + row * phase.per_row + column * phase.per_column + trip * phase.per_trip
    runs = range(phase.rows)
    if phase.gather >= 0:
        indices = program.indices[int(program.gathers[wave]) + trip]
        runs = [int(indices[phase.gather])]  # type: ignore[assignment]
    found = [first + run * phase.pitch + line * LINE for run in runs for line in range(phase.lines)]
    assert all(address % LINE == 0 for address in found)
    return [address // LINE for address in found]


@given(KERNELS, st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_neighbouring_panels_begin_on_different_channels_and_banks(kernel: Kernel, passes: int) -> None:
    program = titan_program(kernel, (2, 2), 16 * passes)
    dram = TITAN.dram
    panel = next(phase.per_row for phase in program.loop if phase.kind == LOAD and phase.gather == 1)
    stripes = panel // dram.interleave
    assert len({number * stripes % dram.channels for number in range(dram.channels)}) == dram.channels
    rows = panel // (dram.channels * dram.row_bytes)
    assert rows == 0 or rows % 2 == 1


@given(KERNELS, st.integers(1, 12), st.integers(1, 3), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_a_program_reaches_no_further_than_its_bytes(kernel: Kernel, high: int, wide: int, passes: int) -> None:
    program = titan_program(kernel, (high, wide), 16 * passes)
    low, reached = program.reach
    assert 0 <= low < reached <= program.bytes


def test_sizes_that_are_not_whole_tiles_are_rejected(small: Device) -> None:
    with pytest.raises(SpecError) as error:
        tiled_gemm(100, 96, 8, Kernel(), small)
    assert [fault.message for fault in error.value.faults] == [
        "m = 100: expected a positive multiple of 96",
        "k = 8: expected a positive multiple of 16",
    ]
    assert Kernel().padded(100, 96, 8) == (192, 96, 16)
