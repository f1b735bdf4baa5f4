"""The state of a run as one table of whole numbers: what the compiled simulator reads and writes.

One table, because a compiled function that is handed many small ones spends its time on handing them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina.simulate.hierarchy.counters import NAMES
from lamina.simulate.hierarchy.program import LOAD, STORE, WAIT, Program
from lamina.simulate.hierarchy.timing import HORIZON, DramTiming, Timing, shift_of

Table = NDArray[np.int64]
NEVER = -(2**60)
FIRST, UNSCHEDULED = -1, -2
"""What stands for the event before one that is the first of its cycle, or in no list."""

(
    P_CUS,
    P_SIMDS,
    P_VALU_BUSY,
    P_VALU,
    P_ABREAST,
    P_VALU_RATE,
    P_VALU_PACE,
    P_LDS_BUSY,
    P_LDS,
    P_SCALAR,
    P_VMEM_ISSUE,
    P_VMEM_PATH,
    P_IN_ORDER,
    P_DISPATCH,
    P_L1_SETS,
    P_L1_WAYS,
    P_L1_HIT,
    P_L1_WRITE,
    P_L1_TO_L2,
    P_L1_FILL,
    P_L1_MSHRS,
    P_L1_INTERVAL,
    P_TRANSLATE,
    P_PAGE_SHIFT,
    P_TLB1_SETS,
    P_TLB1_WAYS,
    P_TLB2_SETS,
    P_TLB2_WAYS,
    P_TLB2_HIT,
    P_WALKERS,
    P_WALK,
    P_WALK_DISTANCE,
    P_L2_SETS,
    P_L2_WAYS,
    P_L2_BANKS,
    P_L2_SHIFT,
    P_L2_HIT,
    P_L2_WRITE,
    P_L2_MISS,
    P_L2_MSHRS,
    P_L2_INTERVAL,
) = range(41)
"""Places of a device's parameters, in the order of ``Timing``."""
(
    S_CYCLE,
    S_NEXT,
    S_FINISHED,
    S_PENDING,
    S_WALKER,
    S_TLB_CLOCK,
    S_WAVES,
    S_EACH,
    S_COLUMNS,
    S_LOOP,
    S_TAIL,
    S_WORKGROUPS,
    S_RING,
    S_BANK_SHIFT,
    S_SLOTS,
    S_PER_SIMD,
) = range(41, 57)
"""Places of the run's own scalars."""
(
    O_COUNTERS,
    O_WAVES,
    O_REQUESTS,
    O_CUS,
    O_SIMDS,
    O_QUEUES,
    O_RETURNS,
    O_MSHRS,
    O_L1,
    O_TLB1,
    O_TLB2,
    O_PAGES,
    O_WALKERS,
    O_L2,
    O_BANKS,
    O_L2_MSHRS,
    O_HEADS,
    O_TAILS,
    O_FOLLOWING,
    O_PREVIOUS,
    O_BUCKET,
    O_TIMES,
    O_FINISHED,
    O_TABLE,
    O_TRIPS,
) = range(57, 82)
"""Places where the starts of the tables stand."""
HEADER = 82
(W_CU, W_SIMD, W_GROUP, W_PLACE, W_TRIPS, W_OUT, W_RELEASE, W_WAITING, W_ISSUED, W_WORK, W_RUNNING,
 W_ROW, W_COLUMN) = range(13)  # fmt: skip
"""Columns of a wave."""
WAVE = 13
(Q_FIRST, Q_PITCH, Q_LINES, Q_STORE, Q_MARK, Q_ASKED, Q_PENDING, Q_DONE, Q_WAVE) = range(9)
"""Columns of a request; which of its lines were asked for and are pending are bit masks."""
REQUEST = 9
(C_LDS, C_L1, C_HEAD, C_COUNT, C_RETURN_HEAD, C_RETURN_COUNT, C_RETURNED, C_MSHR, C_CLOCK, C_TLB_CLOCK) = range(10)
"""Columns of a compute unit."""
CU = 10
(M_READS, M_WRITES, M_ROW_HITS, M_TABLE) = range(4)
"""Places of a memory's scalars; its parameters and tables follow."""
MOST_LINES = 62
"""Lines of one request: as many as a bit mask holds."""


def requests_between_waits(program: Program) -> int:
    """The most loads and stores that a wave has in flight."""
    most = flying = 0
    for phase in (*program.before, *program.loop, *program.loop, *program.after):
        flying = 0 if phase.kind == WAIT else flying + (phase.kind in (LOAD, STORE))
        most = max(most, flying)
    return max(1, most)


def initial(program: Program, timing: Timing, slots: int, workgroups: int) -> Table:
    """The state before the first event: empty caches, no wave started."""
    t = timing
    per_simd = -(-slots // t.simds)
    waves = t.cus * t.simds * per_simd
    each = requests_between_waits(program)
    events = waves + t.cus + waves * each
    index = np.arange(waves)

    def zeros(*shape: int) -> Table:
        return np.zeros(shape, dtype=np.int64)

    def filled(value: int, *shape: int) -> Table:
        return np.full(shape, value, dtype=np.int64)

    def tags(*shape: int) -> Table:
        table = zeros(*shape)
        table[..., 0, :] = -1
        if shape[-2] > 2:
            table[..., 1, :] = NEVER
        return table

    wave = zeros(waves, WAVE)
    wave[:, W_GROUP] = -1
    wave[:, W_CU] = index // per_simd // t.simds  # those of one SIMD lie side by side
    wave[:, W_SIMD] = index // per_simd % t.simds
    request = zeros(waves * each, REQUEST)
    request[:, Q_WAVE] = np.arange(waves * each) // each
    tables = {
        O_COUNTERS: zeros(len(NAMES)),
        O_WAVES: wave,
        O_REQUESTS: request,
        O_CUS: zeros(t.cus, CU),
        O_SIMDS: zeros(t.cus, t.simds, 2),  # updated, waves that run
        O_QUEUES: zeros(t.cus, slots * each),
        O_RETURNS: zeros(t.cus, slots * each),
        O_MSHRS: filled(NEVER, t.cus, t.l1_mshrs),
        O_L1: tags(t.cus, t.l1_sets, 3, t.l1_ways),  # line, ready, used
        O_TLB1: tags(t.cus, t.tlb1_sets, 2, t.tlb1_ways),  # page, used
        O_TLB2: tags(t.tlb2_sets, 2, t.tlb2_ways),
        O_PAGES: zeros(-(-program.bytes // (1 << t.page_shift)) + 1),
        O_WALKERS: filled(NEVER, t.walkers),
        O_L2: tags(t.l2_banks, t.l2_sets, 4, t.l2_ways),  # line, ready, used, dirty
        O_BANKS: zeros(t.l2_banks, 3),  # free, place in the ring of mshrs, clock
        O_L2_MSHRS: filled(NEVER, t.l2_banks, t.l2_mshrs),
        O_HEADS: filled(-1, HORIZON),
        O_TAILS: filled(-1, HORIZON),
        O_FOLLOWING: filled(-1, events),
        O_PREVIOUS: filled(UNSCHEDULED, events),
        O_BUCKET: zeros(events),
        O_TIMES: zeros(events),
        O_FINISHED: filled(NEVER, workgroups),
        O_TABLE: program.table,
        O_TRIPS: program.trips,
    }
    header = zeros(HEADER)
    header[: len(t)] = t
    for place, value in (
        (S_WAVES, waves),
        (S_EACH, each),
        (S_COLUMNS, program.columns),
        (S_LOOP, len(program.before)),
        (S_TAIL, len(program.before) + len(program.loop)),
        (S_WORKGROUPS, workgroups),
        (S_RING, slots * each),
        (S_SLOTS, slots),
        (S_PER_SIMD, per_simd),
        (S_BANK_SHIFT, shift_of(t.l2_banks)),
    ):
        header[place] = value
    start = HEADER
    for place, table in tables.items():
        header[place] = start
        start += table.size
    return np.concatenate([header, *(table.ravel() for table in tables.values())])


def memory(timing: DramTiming) -> Table:
    """The one table of a memory: counts, parameters, then channels and banks."""
    t = timing
    channels = np.full((t.channels, 6), NEVER, dtype=np.int64)  # bus free, place in the ring, four activations
    channels[:, :2] = 0
    banks = np.zeros((t.channels * t.banks, 3), dtype=np.int64)  # free, open row, when opened
    banks[:, 1], banks[:, 2] = -1, NEVER
    counts = np.zeros(M_TABLE, dtype=np.int64)
    return np.concatenate([counts, np.array(t, dtype=np.int64), channels.ravel(), banks.ravel()])
