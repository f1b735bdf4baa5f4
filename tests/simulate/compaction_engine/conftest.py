"""Small engines, zeros and kernels that exercise every path."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina.simulate.compaction_engine.config import VALUES_PER_LINE, Engine, engine_timing
from lamina.simulate.compaction_engine.memory import EngineMemory
from lamina.simulate.compaction_engine.reference import Region
from lamina.simulate.compaction_engine.stream import layout
from lamina.simulate.hierarchy import Device, Phase, Program
from lamina.simulate.hierarchy.program import END, LOAD, STORE, WAIT


def memory_of(device: Device, engine: Engine, mask: NDArray[np.bool_], base: int = 0) -> EngineMemory:
    """An engine before a matrix of which a column is ``mask``'s, each with room for its delivered lines."""
    made = layout(mask, engine)
    pitch = 64 * max(made.lines, -(-made.lines * VALUES_PER_LINE // engine.entries_per_line))
    return EngineMemory(device, engine_timing(engine, mask.shape[0]), made, Region(base, pitch, pitch))


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Any engine, most of them too small for what they are asked."""

    def of(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    block = of(1, 1, 1, 2, 8)
    return Engine(
        compaction=of(True, True, True, False),
        narrow=of(True, False),
        prefetch=of(True, False),
        search=of("accurate", "accurate", "prudent", "hasty"),
        sib_kb=of(1, 2, 512),
        sib_ways=of(1, 2, 16),
        replacement=of("lru", "fifo"),
        window=of("sliding", "fixed"),
        buffer_kb=of(1, 512),
        units=of(1, 3, 32),
        lanes=of(4, 16),
        prefetch_lines=of(1, 2, 8),
        ahead=of(0, 1, 3),
        block=block,
        searchers=of(1, 16),
        step_cycles=of(0.0, 1.0),
    )


@st.composite
def masks(draw: st.DrawFn, rows: int = 700, columns: int = 40) -> NDArray[np.bool_]:
    """Any zeros: dense columns, thin ones, empty ones, whole lines of zeros."""
    k, n = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = random.choice(draw(st.sampled_from(((0.5,), (0.0, 1.0), (0.02, 0.3, 0.9), (0.02,)))), size=n)
    lines = random.random((-(-k // 16), n)) < draw(st.sampled_from((0.3, 1.0)))
    return np.asarray((random.random((k, n)) < density) & np.repeat(lines, 16, axis=0)[:k])


@st.composite
def readers(draw: st.DrawFn, pitch: int, columns: int) -> Program:
    """Workgroups that read columns line by line, some twice, beside loads and stores that pass the engine."""
    rows, wide = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    tiles = draw(st.integers(1, max(1, columns // wide)))
    size = pitch * tiles * wide
    trips = draw(st.lists(st.integers(0, pitch // 64), min_size=rows * tiles, max_size=rows * tiles))
    skip = draw(st.sampled_from((1, 1, 2)))
    reads = Phase(
        LOAD, 1, per_column=pitch * wide, per_trip=64, rows=wide, pitch=pitch, lines=1, mark=1,
    )  # fmt: skip
    other = Phase(draw(st.sampled_from((LOAD, STORE))), 1, base=size, per_trip=64, per_row=128, rows=1, lines=2)
    return Program(
        name="reader",
        before=(),
        loop=(reads, *([other] if draw(st.booleans()) else []), Phase(WAIT, 1)),
        after=(Phase(END, 1),),
        rows=rows,
        columns=tiles,
        trips=np.array(trips, dtype=np.int64) // skip,
        bytes=size + 64 * (2 + pitch // 64) + 128 * rows,
        instructions_per_workgroup=1,
        instructions_per_trip=3,
        registers=64,
        lds_bytes=4096,
        image=(size,),
    )
