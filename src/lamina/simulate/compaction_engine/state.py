"""The engine's state as one integer table, after that of memory, for the compiled engine."""

from __future__ import annotations

import numpy as np

from lamina.simulate.compaction_engine.config import EngineTiming
from lamina.simulate.compaction_engine.counters import NAMES
from lamina.simulate.compaction_engine.reference import Region
from lamina.simulate.compaction_engine.stream import Layout
from lamina.simulate.hierarchy.state import NEVER, Table, memory
from lamina.simulate.hierarchy.timing import DramTiming

(
    P_DIRECT,
    P_PREFETCH,
    P_SEARCH,
    P_SETS,
    P_WAYS,
    P_LRU,
    P_SLIDING,
    P_MAPPING,
    P_BUFFER_LINES,
    P_DEPTH,
    P_SPARE,
    P_UNITS,
    P_PER_LINE,
    P_BATCH,
    P_AHEAD,
    P_SEARCHERS,
    P_LOOKUP,
    P_STEP,
    P_UNIT,
    P_BUFFER,
) = range(20)
"""Indices of the engine's parameters, in the order of ``EngineTiming``."""
(
    R_BASE,
    R_PITCH,
    R_SOURCE,
    S_COLUMNS,
    S_LINES,
    S_CLOCK,
    S_HELD,
    S_LANE,
    O_COUNTERS,
    O_SEARCHERS,
    O_UNITS,
    O_LANES,
    O_BELOW,
    O_DELIVERED,
    O_STARTS,
    O_LAST,
    O_SCAN,
) = range(20, 37)
"""Indices of the region, of the run's scalars, and of the table offsets."""
HEADER = 37
(L_COLUMN, L_USED, L_KNOWN, L_END, L_COUNT, L_NEXT, L_TIME, L_HEAD, L_TAIL, L_READY) = range(10)
"""Columns of a lane, followed by a ring of the ticks at which its compacted lines are ready."""


def initial(timing: EngineTiming, layout: Layout, region: Region, dram: DramTiming) -> tuple[Table, int]:
    """The initial table, starting with that of memory, and the offset of the engine's."""
    t, below = timing, memory(dram)
    start = len(below)
    lanes = np.zeros((t.sets * t.ways, L_READY + t.depth), dtype=np.int64)
    lanes[:, L_COLUMN], lanes[:, L_TIME] = -1, NEVER
    tables = {
        O_COUNTERS: np.zeros(len(NAMES), dtype=np.int64),
        O_SEARCHERS: np.zeros(t.searchers, dtype=np.int64),
        O_UNITS: np.zeros(t.units, dtype=np.int64),
        O_LANES: lanes,
        O_BELOW: layout.below,
        O_DELIVERED: layout.delivered,
        O_STARTS: layout.starts,
        O_LAST: layout.last,
        O_SCAN: layout.scan,
    }
    header = np.zeros(HEADER, dtype=np.int64)
    header[: len(t)] = t
    header[R_BASE : R_SOURCE + 1] = region
    header[S_COLUMNS], header[S_LINES], header[S_LANE] = layout.columns, layout.lines, lanes.shape[1]
    place = start + HEADER
    for offset, table in tables.items():
        header[offset] = place
        place += table.size
    return np.concatenate([below, header, *(table.ravel() for table in tables.values())]), start
