"""What holds for every run of the engine: values and bytes are conserved, time has bounds, equal runs are equal."""

from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.simulate.compaction_engine.conftest import engines, masks, memory_of, readers
from tests.simulate.hierarchy.conftest import TINY, devices

from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.kernel import Kernel, Workload, sparse_gemm
from lamina.simulate.compaction_engine.memory import EngineMemory
from lamina.simulate.compaction_engine.stream import decode, encode, kept
from lamina.simulate.compaction_engine.unit import Control, simulate_sparse
from lamina.simulate.hierarchy import Device, Phase, Program, Simulation, bounds, preset, simulate
from lamina.simulate.hierarchy.program import END, LOAD, STORE, WAIT
from lamina.simulate.hierarchy.reference_memory import Below
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of

SMALL = preset("mi6").changed({**TINY, "l2.bytes": 32768})
LARGE_L1 = SMALL.changed({"l1.bytes": 16384, "l2.bytes": 65536})
SHAPES = [(64, 96, 128), (32, 192, 72), (128, 48, 64)]
KERNEL = Kernel(tile_rows=16, tile_columns=3)


def _run(work: Workload, device: Device, engine: Engine) -> Simulation:
    memory = EngineMemory(device, engine_timing(engine, work.layout.rows), work.layout, work.region)
    return simulate(work.program, device, memory=memory)


def _iid(density: float, rows: int = 160, columns: int = 48, seed: int = 0) -> NDArray[np.bool_]:
    return np.asarray(np.random.default_rng(seed).random((rows, columns)) < density)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), device=devices(), engine=engines())
def test_every_line_and_value_is_accounted_for(data: st.DataObject, device: Device, engine: Engine) -> None:
    memory = memory_of(device, engine, data.draw(masks(columns=24)))
    program = data.draw(readers(memory.region.pitch, 24))
    c = simulate(program, device, memory=memory).counters
    assert c["l1_reads"] == program.requests(LOAD) == c["l1_hits"] + c["l1_mshr_hits"] + c["l1_misses"]
    assert c["l1_writes"] == program.requests(STORE) == c["l2_writes"]
    assert c["l2_reads"] == c["l1_misses"] + len(program.image) == c["l2_hits"] + c["l2_mshr_hits"] + c["l2_misses"]
    assert c["dram_reads"] == c["l2_misses"] - c["engine_reads"] + c["engine_lines"]
    assert c["dram_writes"] == c["l2_write_backs"]
    assert c["engine_values"] + c["engine_zeros"] == 16 * c["engine_lines"]
    looked_up = c["engine_sib_hits"] + c["engine_sib_misses"]
    searches = c["engine_accurate"] + c["engine_prudent"] + c["engine_hasty"] + c["engine_direct"]
    assert looked_up == c["engine_buffer_hits"] + searches <= c["engine_reads"]
    assert c["engine_sib_evictions"] <= c["engine_sib_misses"]
    assert c["engine_delivered"] <= memory.layout.per_line * looked_up
    assert c["engine_buffer_late"] <= c["engine_buffer_hits"] and c["engine_buffer_peak"] <= engine.buffer_kb * 16
    assert c["engine_unit_ticks"] == memory.timing.unit * c["engine_lines"]
    steps = memory.timing.lookup * c["engine_reads"] + memory.timing.step * c["engine_steps"]
    assert c["engine_search_ticks"] == steps


@settings(max_examples=30, deadline=None)
@given(data=st.data(), engine=engines())
def test_a_column_read_once_is_read_whole_and_no_line_twice(data: st.DataObject, engine: Engine) -> None:
    """One workgroup to a tile of columns, all delivered lines in their order, room for every column."""
    mask = data.draw(masks(rows=300, columns=12))
    engine = engine.model_copy(update={"sib_kb": 512, "sib_ways": 16, "buffer_kb": 512, "prefetch": True})
    work = sparse_gemm(16, mask.shape[1], mask, engine, KERNEL)
    c = _run(work, SMALL, engine).counters
    made = work.layout
    used = mask[:, np.arange(made.columns) % mask.shape[1]]
    values = kept(used, engine)
    with_values = int(values.reshape(made.columns, -1, 16).any(axis=2).sum())
    assert c["engine_delivered"] == values.sum() == c["engine_values"]
    assert c["engine_reads"] == np.maximum(1, -(-values.sum(axis=1) // engine.entries_per_line)).sum()
    assert with_values <= c["engine_lines"] <= made.columns * made.lines
    if not engine.compaction:
        assert c["engine_lines"] == with_values


def _serial(run: Simulation, memory: EngineMemory) -> float:
    """Cycles if every part did one thing after another."""
    d, t, c = dram_timing_of(run.device), memory.timing, run.counters
    access = d.latency + d.ras + d.rp + d.rcd + d.cl + d.faw + d.rrd + 2 * d.interval + d.controller
    engine = c["engine_lines"] * (access + t.unit) + c["engine_search_ticks"] + c["engine_reads"] * t.buffer
    return bounds(run)[1] + engine / TICKS


@settings(max_examples=40, deadline=None)
@given(data=st.data(), device=devices(), engine=engines())
def test_time_lies_between_its_bounds(data: st.DataObject, device: Device, engine: Engine) -> None:
    mask = data.draw(masks(rows=120, columns=12))
    work = sparse_gemm(33, 12, mask, engine, KERNEL)
    memory = EngineMemory(device, engine_timing(engine, len(mask)), work.layout, work.region)
    run = simulate(work.program, device, memory=memory)
    c = run.counters
    least = max(
        bounds(run)[0],
        c["engine_unit_ticks"] / engine.units / TICKS,
        c["engine_lines"] * dram_timing_of(device).interval / device.dram.channels / TICKS,
    )
    assert least <= run.cycles <= _serial(run, memory)


ANOMALY = 1.02
"""The order of events may make a better machine slower by so much, never by more."""
MORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bandwidth": ({"dram.cycles_per_line": 16.0}, {"dram.cycles_per_line": 8.0}),
    "burst": ({"dram.mode": "banked", "dram.burst_ns": 16.0}, {"dram.mode": "banked", "dram.burst_ns": 8.0}),
    "channels": ({"dram.cycles_per_line": 16.0}, {"dram.cycles_per_line": 16.0, "dram.channels": 4}),
    "DRAM banks": (
        {"dram.mode": "banked", "dram.banks": 1, "dram.row_bytes": 256},
        {"dram.mode": "banked", "dram.banks": 8, "dram.row_bytes": 256},
    ),
    "L2 banks": ({"l2.lines_per_cycle": 0.1}, {"l2.lines_per_cycle": 0.1, "l2.banks": 4, "l2.ways": 2}),
    "L2 MSHRs": ({"l2.mshrs": 1}, {"l2.mshrs": 4}),
    "many L2 MSHRs": ({"l2.mshrs": 2}, {"l2.mshrs": 64}),
    "L1 MSHRs": ({"l1.mshrs": 2}, {"l1.mshrs": 4}),
    "memory latency": ({"dram.latency": 400.0}, {"dram.latency": 200.0}),
}
BETTER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "units": ({"units": 1, "unit_cycles": 32.0}, {"units": 4, "unit_cycles": 32.0}),
    "searchers": ({"searchers": 1, "step_cycles": 8.0}, {"searchers": 16, "step_cycles": 8.0}),
    "lookups": ({"lookup_cycles": 100.0}, {"lookup_cycles": 10.0}),
    "information block": ({"sib_kb": 1, "sib_ways": 4}, {"sib_kb": 64, "sib_ways": 4}),
}


@pytest.mark.parametrize(("less", "more"), MORE.values(), ids=MORE)
@pytest.mark.parametrize("search", ["accurate", "hasty"])
def test_more_of_a_resource_is_never_slower(less: dict[str, Any], more: dict[str, Any], search: str) -> None:
    engine = Engine(search=search)  # type: ignore[arg-type]
    work = sparse_gemm(64, 192, _iid(0.5), engine, KERNEL)
    slow, fast = (_run(work, SMALL.changed(settings), engine).cycles for settings in (less, more))
    assert fast <= ANOMALY * slow


@pytest.mark.parametrize(("less", "more"), BETTER.values(), ids=BETTER)
def test_more_of_an_engine_is_never_slower(less: dict[str, Any], more: dict[str, Any]) -> None:
    slow, fast = (
        _run(sparse_gemm(64, 192, _iid(0.5), engine, KERNEL), SMALL, engine).cycles
        for engine in (Engine(**less), Engine(**more))
    )
    assert fast <= ANOMALY * slow


def test_full_mshrs_hold_searches_back_without_making_them_longer() -> None:
    """A search that waits in line is not charged that wait again by each line that waits for its MSHR."""
    device = preset("mi6").changed(
        {"cu.count": 8, "l2.bytes": 131072, "l2.banks": 2, "dram.mode": "banked", "dram.channels": 2}
    )
    engine = Engine(searchers=1)
    work = sparse_gemm(256, 256, _iid(0.4, rows=1024, columns=256), engine, Kernel(weights="tile"))
    few, many = (_run(work, device.changed({"l2.mshrs": mshrs}), engine) for mshrs in (8, 4096))
    assert many.cycles <= ANOMALY * few.cycles
    assert few.cycles < 2 * many.cycles


class _SlowFirst:
    """Memory whose first line takes so many ticks, every other 64."""

    def __init__(self, first: int):
        self.first, self.asked = first, list[int]()

    def read(self, now: int, address: int, mark: int) -> int:
        self.asked.append(now)
        return now + (self.first if len(self.asked) == 1 else 64)

    def write(self, now: int, address: int) -> None: ...

    def reference(self) -> Below:
        return self

    def compiled(self) -> NoReturn:
        raise AssertionError("not compiled")

    def counters(self, part: object) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(("mshrs", "waits"), [(1, True), (2, False)])
def test_a_slow_line_holds_one_mshr_and_no_other_line(mshrs: int, waits: bool) -> None:
    loads = tuple(Phase(LOAD, 1, base=128 * 2 * i, rows=1, lines=1, mark=2) for i in range(5))  # all of one bank
    program = Program(
        "slow", loads, (), (Phase(WAIT, 1), Phase(END, 1)), 1, 1, np.zeros(1, dtype=np.int64), 4096, 1, 0, 4, 0
    )
    memory = _SlowFirst(1000 * TICKS)
    device = SMALL.changed({"l2.mshrs": mshrs, "translation.enabled": False})
    simulate(program, device, impl="reference", memory=memory)
    assert len(memory.asked) == 5
    assert (memory.asked[1] > memory.asked[0] + 900 * TICKS) == waits
    assert (memory.asked[-1] > memory.asked[0] + 900 * TICKS) == waits


@settings(max_examples=25, deadline=None)
@given(mask=masks(rows=100, columns=10), engine=engines(), seed=st.integers(0, 2**32))
def test_what_is_delivered_is_the_matrix(mask: NDArray[np.bool_], engine: Engine, seed: int) -> None:
    matrix = (np.random.default_rng(seed).normal(size=mask.shape) * mask).astype(np.float32)
    expected = matrix.astype(np.float16).astype(np.float32) if engine.narrow else matrix
    assert np.array_equal(decode(encode(matrix, engine)), expected)


def _without_zeros(compaction: bool, mode: str, order: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Cycles of an fp32 engine that reads nothing ahead, and without it beside the whole L2 and what is left."""
    m, n, k = shape
    engine = Engine(compaction=compaction, narrow=False, prefetch=False)
    kernel, device = KERNEL.model_copy(update={"order": order}), LARGE_L1.changed({"dram.mode": mode})
    controls: tuple[Control, ...] = ("engine", "kernel", "kernel-small-l2")
    mask = np.ones((k, 48), dtype=np.bool_)
    one, two, three = (
        simulate_sparse(m, n, mask, device, engine, kernel, control=control).cycles for control in controls
    )
    return one, two, three


@pytest.mark.parametrize("mode", ["ideal", "banked"])
@pytest.mark.parametrize("order", ["columns", "rows"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_zeros_fp32_compaction_only_costs(shape: tuple[int, int, int], order: str, mode: str) -> None:
    """Where L1 holds what a pass reads: with room for less, passes over 8 rows of A share more than over 16 do."""
    engine, *without = _without_zeros(True, mode, order, shape)
    assert engine >= max(without)


@pytest.mark.parametrize("mode", ["ideal", "banked"])
def test_an_engine_that_only_passes_lines_on_gains_nothing(mode: str) -> None:
    """One run may differ by its order of events; several together do not."""
    runs = [_without_zeros(False, mode, order, shape) for order in ("columns", "rows") for shape in SHAPES]
    engine, whole, small = (sum(cycles) for cycles in zip(*runs, strict=True))
    assert ANOMALY * engine >= max(whole, small)


@pytest.mark.parametrize("density", [0.3, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_alike_columns_hardly_matters(seed: int, density: float) -> None:
    """The longest column of a tile decides its passes: their sum moves with which columns share one."""
    mask, engine = _iid(density, rows=320, columns=192, seed=seed), Engine()
    shuffled = mask[:, np.random.default_rng(seed + 1).permutation(192)]
    one, two = (_run(sparse_gemm(32, 192, each, engine, KERNEL), LARGE_L1, engine) for each in (mask, shuffled))
    assert two.program.trips.sum() == pytest.approx(one.program.trips.sum(), rel=0.02)
    assert two.cycles == pytest.approx(one.cycles, rel=0.02)
    assert two.counters["engine_values"] == pytest.approx(one.counters["engine_values"], rel=0.05)


@pytest.mark.parametrize("search", ["accurate", "prudent", "hasty"])
@pytest.mark.parametrize("density", [0.25, 0.5, 0.75])
def test_zeros_in_clusters_never_add_lines_of_memory(density: float, search: str) -> None:
    """As many values of each column, in whole lines of it instead of anywhere. A hasty search reads blindly: what it
    reads twice depends on the order of events."""
    rng, (rows, columns) = np.random.default_rng(0), (320, 48)
    lines = rng.permuted(np.arange(rows // 16)[:, None].repeat(columns, axis=1), axis=0)
    clustered = (lines < density * rows / 16).repeat(16, axis=0)
    scattered = rng.permuted(clustered, axis=0)
    engine = Engine(search=search)  # type: ignore[arg-type]
    apart, together = (
        _run(sparse_gemm(32, columns, mask, engine, KERNEL), LARGE_L1, engine).counters
        for mask in (scattered, clustered)
    )
    assert np.array_equal(clustered.sum(axis=0), scattered.sum(axis=0)) and not np.array_equal(clustered, scattered)
    for name in ("engine_lines", "dram_reads"):
        assert together[name] <= apart[name] * (ANOMALY if search == "hasty" else 1)


@pytest.mark.parametrize("search", ["accurate", "prudent", "hasty"])
def test_more_zeros_are_faster(search: str) -> None:
    values = np.random.default_rng(0).random((320, 48))
    engine = Engine(search=search)  # type: ignore[arg-type]
    cycles = [
        _run(sparse_gemm(32, 48, values < density, engine, KERNEL), LARGE_L1, engine).cycles
        for density in (0.9, 0.7, 0.5, 0.3, 0.1)
    ]
    assert cycles == sorted(cycles, reverse=True) and len(set(cycles)) == len(cycles)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), device=devices(), engine=engines())
def test_equal_runs_are_equal(data: st.DataObject, device: Device, engine: Engine) -> None:
    mask = data.draw(masks(rows=100, columns=9))
    one, two = (_run(sparse_gemm(40, 9, mask, engine, KERNEL), device, engine) for _ in range(2))
    assert one.cycles == two.cycles and one.counters == two.counters
    assert np.array_equal(one.finished, two.finished)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.sampled_from((1, 15, 16, 17, 100, 160)),
    columns=st.sampled_from((1, 2, 7)),
    full=st.booleans(),
    engine=engines(),
)
def test_all_zeros_none_one_column_and_broken_lines(rows: int, columns: int, full: bool, engine: Engine) -> None:
    mask = np.full((rows, columns), full)
    work = sparse_gemm(16, columns, mask, engine, KERNEL)
    run = _run(work, SMALL, engine)
    c, tiles = run.counters, -(-columns // 3)
    multiplied = rows if full or not engine.compaction else 0
    if engine.compaction:
        multiplied = -(-multiplied // engine.block) * engine.block
    lines = max(1, -(-multiplied // engine.entries_per_line))
    assert c["l1_reads"] == tiles * (1 + 3 * (lines + multiplied))
    assert c["engine_reads"] == tiles * 3 * lines
    assert c["engine_delivered"] == tiles * 3 * multiplied
    assert (work.program.trips == lines).all()
