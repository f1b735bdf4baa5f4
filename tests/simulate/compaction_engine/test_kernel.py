"""The kernels as phase programs: counted by hand, and followed from address to address to the product."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.simulate.compaction_engine.conftest import masks
from tests.simulate.hierarchy.conftest import TINY

from lamina.errors import SpecError, UsageError
from lamina.simulate.compaction_engine import kernel as kernels
from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.kernel import PLAIN, Kernel, Workload, packed_gemm, sparse_gemm
from lamina.simulate.compaction_engine.memory import EngineMemory
from lamina.simulate.compaction_engine.reference import MARK
from lamina.simulate.compaction_engine.stream import NONE, encode
from lamina.simulate.hierarchy import Phase, gemm, preset, simulate
from lamina.simulate.hierarchy.program import LOAD, SKIPPED, STORE

SMALL = Kernel(tile_rows=16, tile_columns=2)
FORMATS = {
    "fp16": Engine(),
    "fp32": Engine(narrow=False),
    "blocks of 2": Engine(block=2),
    "blocks of 4, fp32": Engine(narrow=False, block=4),
    "narrowed only": Engine(compaction=False),
    "untouched": Engine(compaction=False, narrow=False),
}


def _two_columns() -> NDArray[np.bool_]:
    """Of 20 rows: the first 3 of one column, the first 17 of the other."""
    mask = np.zeros((20, 2), dtype=np.bool_)
    mask[:3, 0] = mask[:17, 1] = True
    return mask


# Per column, lines of B (3 and 17 values) and rows of A; passes; instructions of a pass.
COUNTED = {
    "fp16": (1 + 2, 3 + 17, 2, 58),
    "fp32": (1 + 3, 3 + 17, 3, 37),
    "blocks of 2": (1 + 1, 4 + 18, 1, 68),
    "blocks of 4, fp32": (1 + 2, 4 + 20, 2, 47),
    "narrowed only": (1 + 1, 20 + 20, 1, 97),
    "untouched": (2 + 2, 20 + 20, 2, 55),
}


@pytest.mark.parametrize("order", ["columns", "rows"])
@pytest.mark.parametrize(("form", "counted"), COUNTED.items(), ids=COUNTED)
def test_requests_and_instructions_by_hand(form: str, counted: tuple[int, int, int, int], order: str) -> None:
    lines, rows, passes, each = counted
    kernel = SMALL.model_copy(update={"order": order})
    program = sparse_gemm(33, 5, _two_columns(), FORMATS[form], kernel).program
    tiles = 3 * 3  # of 16 rows and 2 columns
    assert program.workgroups == tiles
    assert program.requests(LOAD) == tiles * (1 + lines + rows)
    assert program.requests(STORE) == tiles * 2
    assert program.instructions == tiles * (72 + 9 + passes * each)


def test_a_pass_by_hand() -> None:
    """Two lines of B, 32 entries; per column a row of A for each of 16: four loads of 64 lanes."""
    fetch = 4 + 2 + 1 + 1 + 1 + 3 + 1 + 1
    program = sparse_gemm(16, 2, _two_columns(), Engine(), SMALL).program
    assert program.instructions_per_trip == fetch + 2 * (4 + 2 * 4 + 4) + 1 + 10 + 1 == COUNTED["fp16"][3]
    shared = sparse_gemm(16, 2, _two_columns(), Engine(), SMALL.model_copy(update={"weights": "tile"})).program
    assert shared.instructions_per_trip == fetch + (2 * 4 + 4) + 1 + 4 + 1 + 1 + 10 + 2
    assert shared.requests(LOAD) == 1 + 3 + 17  # those that the longest column selects


def test_every_row_is_multiplied_though_fewer_are_delivered() -> None:
    work = sparse_gemm(16, 2, _two_columns(), Engine(), SMALL, skip=False)
    assert work.program.trips.tolist() == [2]
    assert work.program.requests(LOAD) == 1 + (1 + 2) + (20 + 20)
    assert work.layout.delivered.tolist() == [1, 2]


def test_columns_beyond_the_mask_repeat_it_in_whole_tiles() -> None:
    mask = np.zeros((16, 3), dtype=np.bool_)
    mask[:, 1] = True
    work = sparse_gemm(16, 100, mask, Engine(), SMALL)
    assert work.layout.below[:, -1].tolist() == [0, 16, 0, 0]
    assert work.program.requests(LOAD) == 50 + 100 + 25 * 16
    assert sparse_gemm(16, 2, mask, Engine(), SMALL).layout.columns == 2


def _runs(work: Workload, phase: Phase, workgroup: int, trip: int) -> list[tuple[int, int]]:
    """Index and first address of each run of a phase."""
    program = work.program
    row, column = divmod(workgroup, program.columns)
    base = phase.base + row * phase.per_row + column * phase.per_column + trip * phase.per_trip
    if phase.gather < 0:
        return [(run, base + run * phase.pitch) for run in range(phase.rows)]
    own = program.indices[int(program.gathers[workgroup]) + trip, phase.gather : phase.gather + phase.rows]
    return [(int(index), base + int(index) * phase.pitch) for index in own]


def _product(work: Workload, a: NDArray[np.float64], b: NDArray[np.float32], engine: Engine, kernel: Kernel) -> None:
    """Follow every address: C of what is loaded, stored where the program stores it, is A B."""
    stream, wide, high = encode(b, engine), kernel.tile_columns, kernel.tile_rows
    height = work.program.after[1].pitch // 4
    memory = np.zeros((work.layout.lines * 16, height))  # A in columns, as it lies from address 0
    memory[: a.shape[1], : len(a)] = a.T
    program, columns = work.program, work.layout.columns
    c: defaultdict[tuple[int, int], NDArray[np.float64]] = defaultdict(lambda: np.zeros(high))
    first_store = min(phase.base for phase in program.after if phase.kind == STORE)
    stores: defaultdict[int, set[int]] = defaultdict(set)
    for workgroup in range(program.workgroups):
        sums: dict[int, NDArray[np.float64]] = {}
        part: set[int] = set()
        for trip in range(int(program.trips[workgroup])):
            lines: list[tuple[int, int] | None] = []
            for phase in program.loop:
                if phase.kind != LOAD:
                    continue
                runs = _runs(work, phase, workgroup, trip)
                if phase.mark == MARK:
                    for index, address in runs:
                        column, place = divmod(address - work.region.base, work.region.pitch)
                        lines.append(None if index == SKIPPED else (column, place // 64))
                    continue
                place, entry = divmod(phase.gather - wide, engine.entries_per_line)
                users = range(wide) if kernel.weights == "tile" else [place]
                for offset, (index, address) in enumerate(runs):
                    for user in users:
                        if (line := lines[user]) is None:
                            assert index == SKIPPED or kernel.weights == "tile"
                            continue
                        column, number = line
                        at = work.layout.starts[column % columns] + number
                        row = int(stream.rows[at, entry + offset])
                        if row == NONE:
                            assert index == SKIPPED or kernel.weights == "tile"
                            continue
                        assert row == index
                        k, m = divmod(address // 4, height)
                        assert k == row
                        part.add(m)
                        value = float(stream.values[at, entry + offset])
                        sums.setdefault(column, np.zeros(high))
                        sums[column] += value * memory[k, m : m + high]
        for phase in program.after:
            for _, address in _runs(work, phase, workgroup, 0) if phase.kind == STORE else ():
                column, m = divmod((address - first_store) // 4, height)
                stores[column].add(m)
                assert not part or part == {m}
                c[column, m] += sums.pop(column, np.zeros(high))
        assert not sums  # every column of the tile is stored
    delivered = b.astype(np.float16).astype(np.float64) if engine.narrow else b.astype(np.float64)
    expected = a @ delivered
    for (column, m), got in c.items():
        rows = expected[m : m + high, column % columns] if column % columns < b.shape[1] else np.zeros(0)
        assert np.allclose(got[: len(rows)], rows)
        assert (got[len(rows) :] == 0).all()
    tiles = -(-len(a) // high)
    assert all(held == {high * tile for tile in range(tiles)} for held in stores.values())
    assert len(stores) == program.workgroups * wide // tiles


@pytest.mark.parametrize("engine", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("weights", ["column", "tile"])
@pytest.mark.parametrize("order", ["columns", "rows"])
@settings(max_examples=4, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_what_is_loaded_gives_the_product(
    order: str, weights: str, engine: Engine, data: st.DataObject, seed: int
) -> None:
    mask = data.draw(masks(rows=70, columns=9))
    kernel = Kernel.model_validate(
        {"tile_rows": 16, "tile_columns": 3, "order": order, "weights": weights, "padded": data.draw(st.booleans())}
    )
    if weights == "tile":  # right only where the columns of a tile share their zeros
        mask = np.repeat(mask[:, ::3], 3, axis=1)
    mask = mask[:, : len(mask[0]) // 3 * 3] if mask.shape[1] >= 3 else np.repeat(mask[:, :1], 3, axis=1)
    random = np.random.default_rng(seed)
    b = (random.uniform(0.5, 2, mask.shape) * mask).astype(np.float32)
    a = random.normal(size=(21, len(mask)))
    _product(sparse_gemm(21, mask.shape[1] + 3, mask, engine, kernel), a, b, engine, kernel)


@pytest.mark.parametrize(("m", "padded", "banks"), [(256, True, 16), (256, False, 4), (64, True, 16), (512, True, 16)])
def test_padded_columns_of_a_lie_in_every_bank(m: int, padded: bool, banks: int) -> None:
    """Of 16 banks that take 128 bytes each in turn."""
    work = sparse_gemm(m, 8, np.ones((64, 8), dtype=np.bool_), Engine(), Kernel(padded=padded))
    loads = [phase for phase in work.program.loop if phase.mark == PLAIN]
    lines = [
        address + 64 * line
        for trip in range(int(work.program.trips[0]))
        for phase in loads
        for _, address in _runs(work, phase, 0, trip)
        for line in range(phase.lines)
    ]
    used = np.bincount(np.array(lines) // 128 % 16, minlength=16)
    assert (used > 0).sum() == banks
    assert used.max() == used[used > 0].min()


@pytest.mark.parametrize("narrow", [False, True], ids=["fp32", "fp16"])
def test_packed_panels_move_as_many_bytes_as_their_format_takes(narrow: bool) -> None:
    m, n, k = 64, 96, 128
    engine = Engine(compaction=False, narrow=narrow, prefetch=False)
    work = packed_gemm(m, n, k, engine)
    passes = (m // 32) * (n // 32) * (k // 32)
    lines_of_b = 32 if narrow else 64  # of a pass: 32 x 32 values
    assert work.program.requests(LOAD) == (m // 32) * (n // 32) + passes * (64 + lines_of_b)
    assert work.program.requests(STORE) == m * n // 16
    conversions = 8 * 4 * 4 if narrow else 0
    dense = gemm(m, n, k, "corrected").instructions
    assert work.program.instructions == dense + passes * conversions
    device = preset("mi6")
    for reader in (engine, engine.model_copy(update={"prefetch": True})):
        memory = EngineMemory(device, engine_timing(reader, work.layout.rows), work.layout, work.region)
        counters = simulate(work.program, device, memory=memory).counters
        assert counters["engine_reads"] * 64 == k * n * (2 if narrow else 4)
        assert counters["engine_lines"] * 64 == k * n * 4
        assert counters["dram_reads"] == counters["engine_lines"] + k * m // 16 + 32


def test_packed_panels_lie_in_the_order_of_passes() -> None:
    work = packed_gemm(32, 64, 64, Engine(compaction=False))
    asked = [
        address + 64 * line
        for workgroup in range(work.program.workgroups)
        for trip in range(int(work.program.trips[workgroup]))
        for phase in work.program.loop
        if phase.mark == MARK
        for _, address in _runs(work, phase, workgroup, trip)
        for line in range(phase.lines)
    ]
    columns, places = np.divmod(np.array(asked) - work.region.base, work.region.pitch)
    assert columns.tolist() == [0] * 64 + [1] * 64
    assert places.tolist() == [*range(0, 64 * 64, 64)] * 2
    assert all(phase.mark == PLAIN for phase in work.program.loop if phase.kind == LOAD and phase.mark != MARK)


def test_invalid_arguments_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.ones((32, 4), dtype=np.bool_)
    for sizes in ((0, 4), (4, 0)):
        with pytest.raises(UsageError, match="expected positive sizes"):
            sparse_gemm(*sizes, mask, Engine())
    with pytest.raises(UsageError, match="expected a boolean mask"):
        sparse_gemm(4, 4, mask[:, 0], Engine())
    with pytest.raises(UsageError, match="expected an engine with compaction = false"):
        packed_gemm(32, 32, 32, Engine())
    with pytest.raises(SpecError, match="positive multiple of 32"):
        packed_gemm(32, 33, 32, Engine(compaction=False))
    monkeypatch.setattr(kernels, "MOST_INDICES", 8 * 17 * 2)
    sparse_gemm(4, 4, mask, Engine())
    with pytest.raises(UsageError, match="give fewer columns"):
        sparse_gemm(4, 16, np.ones((32, 16), dtype=np.bool_), Engine())


def test_longest_kernels_run_to_their_end() -> None:
    """Tiles of every height and the widest tile ask for no more lines at once than a request holds."""
    mask = np.random.default_rng(0).random((50, 40)) < 0.5
    device = preset("mi6").changed(TINY)
    for high in (16, 32, 64):
        program = sparse_gemm(70, 40, mask, Engine(), Kernel(tile_rows=high, tile_columns=32)).program
        assert (simulate(program, device).finished > 0).all()
