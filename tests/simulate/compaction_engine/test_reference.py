"""The engine by hand: which lines it asks memory for, in which mode, and when a line is delivered."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.simulate.compaction_engine.conftest import masks
from tests.simulate.compaction_engine.test_search import published

from lamina.simulate.compaction_engine.config import Engine, engine_timing
from lamina.simulate.compaction_engine.reference import MARK, CompactionEngine, Region
from lamina.simulate.compaction_engine.search import accurate, profile
from lamina.simulate.compaction_engine.stream import layout
from lamina.simulate.hierarchy import preset
from lamina.simulate.hierarchy.reference_memory import Dram
from lamina.simulate.hierarchy.timing import TICKS, dram_timing_of

LATENCY = 100
"""Cycles of a memory without queues."""


class Recording(Dram):
    """Memory with a latency alone, and the lines it was asked for."""

    def __init__(self) -> None:
        super().__init__(dram_timing_of(preset("mi6")))
        self.lines: list[int] = []

    def read(self, now: int, address: int, mark: int) -> int:
        self.lines.append(address // 64)
        return now + LATENCY * TICKS

    def asked(self) -> list[int]:
        asked, self.lines = self.lines, []
        return asked


def machine(mask: NDArray[np.bool_], **settings: Any) -> tuple[CompactionEngine, Recording]:
    engine, memory = Engine(**settings), Recording()
    made = layout(mask, engine)
    pitch = 64 * 2 * made.lines
    region = Region(0, pitch, 64 * made.lines)
    return CompactionEngine(engine_timing(engine, len(mask)), made, region, memory), memory


def ask(engine: CompactionEngine, line: int, column: int = 0, now: int = 0) -> float:
    """The cycle at which a line is there."""
    return engine.read(now * TICKS, engine.region.pitch * column + 64 * line, MARK) / TICKS


def test_the_published_example_line_by_line() -> None:
    engine, memory = machine(published()[:, None], prefetch_lines=2)
    ask(engine, 0)
    assert memory.asked() == [0, 1, 2, 3, 4, 5]  # two at a time; what line 4 has left shows that more follows
    ask(engine, 1, now=1000)
    assert memory.asked() == [6]
    ask(engine, 0, now=2000)
    assert memory.asked() == [1, 4]
    ask(engine, 1, now=3000)
    assert memory.asked() == [6]
    ask(engine, 1, now=4000)
    assert memory.asked() == [4, 6]  # what line 4 had left is gone with the line it was for
    names = ("engine_hasty", "engine_prudent", "engine_accurate")
    assert [engine.counters[name] for name in names] == [2, 0, 3]


def test_searches_find_what_the_algorithms_find() -> None:
    random = np.random.default_rng(1)
    column = random.random(640) < 0.3
    engine, memory = machine(column[:, None])
    seen = profile(column)
    for line in range(len(seen.mappings)):
        ask(engine, line, now=1000 * line)
    memory.asked()
    for line in range(len(seen.mappings)):
        before = engine.counters["engine_steps"]
        ask(engine, line, now=10**6 + 1000 * line)
        found = accurate(seen.bits, seen.mappings, line)
        assert tuple(memory.asked()) == found.lines
        steps = found.steps if found.lines else 0  # with nothing to fetch, it came with the line before
        assert engine.counters["engine_steps"] - before == steps


def test_a_line_takes_lookup_search_memory_compaction_and_buffer() -> None:
    settings = {"lookup_cycles": 4.0, "step_cycles": 1.0, "unit_cycles": 8.0, "buffer_cycles": 2.0}
    engine, _ = machine(np.ones((256, 2), np.bool_), prefetch_lines=1, prefetch=False, **settings)
    first = 4 + 1 + LATENCY + 8
    again = 1 + LATENCY + 8 + 1  # a second round: whether the column goes on
    assert ask(engine, 0) == first + again + 2
    assert engine.counters["engine_rounds"] == 1
    assert ask(engine, 15, now=10**4) > 10**4 + LATENCY
    assert ask(engine, 3, now=2 * 10**4) == 2 * 10**4 + 4 + 3 + 1 + LATENCY + 8 + 2  # past three mappings


def test_what_was_read_ahead_waits_in_the_buffer() -> None:
    engine, memory = machine(np.ones((256, 1), np.bool_), prefetch_lines=4)
    done = ask(engine, 0)
    assert memory.asked() == [0, 1, 2, 3]
    assert ask(engine, 1, now=1) <= done + 10  # still on its way
    assert ask(engine, 2, now=500) == 500 + 4 + 2
    assert memory.asked() == []
    assert (engine.counters["engine_buffer_hits"], engine.counters["engine_buffer_late"]) == (2, 1)
    assert engine.counters["engine_buffer_peak"] == 2
    ask(engine, 3, now=1000)
    assert memory.asked() == [4, 5, 6, 7]  # line 3 is there; whether it is the last is not known


def test_a_full_buffer_stops_reading_ahead() -> None:
    engine, memory = machine(np.ones((512, 8), np.bool_), prefetch_lines=8, buffer_kb=1)
    for column in range(8):
        ask(engine, 0, column)
    assert engine.counters["engine_buffer_peak"] <= 16
    assert engine.counters["engine_buffer_full"] > 0
    assert len(memory.asked()) < 8 * 8


def test_a_window_that_slid_is_searched_prudently() -> None:
    mask = np.ones((1024, 1), np.bool_)  # 64 compacted lines, of which 18 are mapped
    mask[32:64] = False
    engine, memory = machine(mask, prefetch=False)
    for line in range(62):
        ask(engine, line, now=10**4 * line)
    memory.asked()
    ask(engine, 61, now=10**6)
    assert memory.asked() == [63]
    ask(engine, 1, now=2 * 10**6)
    assert memory.asked() == [0, 1, 4]  # the zeros between are skipped
    assert engine.counters["engine_prudent"] == 1
    fixed, memory = machine(mask, prefetch=False, window="fixed")
    for line in range(62):
        ask(fixed, line, now=10**4 * line)
    memory.asked()
    ask(fixed, 1, now=10**6)
    assert memory.asked() == [1]


@pytest.mark.parametrize(("replacement", "survivor"), [("lru", 0), ("fifo", 32)])
def test_entries_make_room(replacement: str, survivor: int) -> None:
    engine, memory = machine(np.ones((64, 65), np.bool_), sib_kb=1, sib_ways=2, replacement=replacement)
    sets = engine.timing.sets
    assert sets == 16
    for now, column in enumerate((0, 32, 0, 64)):
        ask(engine, 3, column, now=10**4 * now)
    memory.asked()
    before = engine.counters["engine_sib_hits"]
    ask(engine, 3, survivor, now=10**6)
    assert engine.counters["engine_sib_hits"] == before + 1
    assert engine.counters["engine_sib_evictions"] == 1


def test_beyond_the_end_nothing_is_fetched() -> None:
    engine, memory = machine(np.zeros((64, 1), np.bool_))
    assert ask(engine, 1) == 4 + 2
    assert memory.asked() == []
    ask(engine, 0)
    assert memory.asked() == [0, 1, 2, 3]
    ask(engine, 0, now=1000)
    assert memory.asked() == []  # all lines are known to be empty


@given(mask=masks(rows=300, columns=4), seed=st.integers(0, 2**32))
def test_knowing_more_never_reads_more(mask: NDArray[np.bool_], seed: int) -> None:
    read = {}
    for search in ("accurate", "prudent", "hasty"):
        engine, memory = machine(mask, search=search, prefetch=False)
        order = np.random.default_rng(seed)
        for now, column in enumerate(order.integers(0, mask.shape[1], 6)):
            for line in range(int(engine.layout.delivered[column])):
                ask(engine, line, int(column), now=10**6 * now + 10**3 * line)
        read[search] = len(memory.asked())
    assert read["accurate"] <= read["prudent"] <= read["hasty"]


@given(mask=masks(rows=300, columns=4), compaction=st.booleans(), narrow=st.booleans(), prefetch=st.booleans())
def test_values_in_are_values_out_and_zeros(
    mask: NDArray[np.bool_], compaction: bool, narrow: bool, prefetch: bool
) -> None:
    engine, memory = machine(mask, compaction=compaction, narrow=narrow, prefetch=prefetch)
    for column in range(mask.shape[1]):
        for line in range(int(engine.layout.delivered[column])):
            ask(engine, line, column, now=10**6 * column + 10**3 * line)
    c, lines = engine.counters, mask.shape[1] * engine.layout.lines
    assert sorted(memory.asked()) == list(range(lines))
    assert 16 * c["engine_lines"] == c["engine_values"] + c["engine_zeros"] == 16 * lines
    assert c["engine_values"] == c["engine_delivered"] == (mask.sum() if compaction else mask.size)
    assert engine.held == 0
