"""The state of a run as one integer table, which the compiled simulator reads and writes.

It is one table because passing many small arrays to a compiled function is slow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.counters import NAMES
from lamina.simulate.hierarchy.program import LOAD, STORE, WAIT, Program, aligned
from lamina.simulate.hierarchy.timing import HORIZON, DramTiming, Timing, shift_of

Table = NDArray[np.int64]
NEVER = -(2**60)
FIRST, UNSCHEDULED = -1, -2
"""Predecessor of an event that is the first of its cycle, or in no list."""

(
    P_CUS,
    P_SIMDS,
    P_VALU_BUSY,
    P_VALU,
    P_CONCURRENT,
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
"""Indices of a device's parameters, in the order of ``Timing``."""
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
    S_LINE_BITS,
    S_LINE_MASK,
    S_INDICES,
) = range(41, 60)
"""Indices of the run's scalars."""
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
    O_BUCKETS,
    O_EVENTS,
    O_FINISHED,
    O_TABLE,
    O_TRIPS,
    O_INDICES,
    O_GATHERS,
) = range(60, 83)
"""Indices of the table offsets."""
HEADER = 83
ALIGNED = 8
"""Words of a cache line of the host: tables and rows are aligned to it."""
(W_WORK, W_GROUP, W_PC, W_TRIPS, W_CU, W_SIMD, W_OUT, W_RELEASE, W_WAITING, W_ISSUED,
 W_ROW, W_COLUMN) = range(12)  # fmt: skip
"""Columns of a wavefront. Its remaining vector work is stored with its SIMD, at index ``W_WORK``."""
U_UPDATED, U_RUN, U_WORK = range(3)
"""Columns of a SIMD: the tick of its last update, and the number of running wavefronts; then, for each of its
wavefronts, the remaining work (0: none), whether it runs, and its workgroup."""
WAVE = 16
(Q_FIRST, Q_PHASE, Q_STORE, Q_REQUESTED, Q_PENDING, Q_DONE, Q_WAVE, Q_INDEX) = range(8)
"""Columns of a request; its requested and pending lines are bit masks, ``Q_INDEX`` is its first index or -1."""
REQUEST = 8
(C_LDS, C_L1, C_HEAD, C_COUNT, C_RETURN_HEAD, C_RETURN_COUNT, C_RETURNED, C_MSHR, C_LAST_PAGE) = range(9)
"""Columns of a compute unit."""
CU = 16
(E_FOLLOWING, E_PREVIOUS, E_BUCKET, E_TIME) = range(4)
"""Columns of an event."""
EVENT = 4
(M_READS, M_WRITES, M_ROW_HITS, M_TABLE) = range(4)
"""Indices of a memory's scalars; its parameters and tables follow."""
MAX_LINES = 62
"""Maximum number of lines of one request, by the size of the bit mask."""


def requests_between_waits(program: Program) -> int:
    """The maximum number of loads and stores of a wavefront in flight."""
    most = in_flight = 0
    for phase in (*program.before, *program.loop, *program.loop, *program.after):
        in_flight = 0 if phase.kind == WAIT else in_flight + (phase.kind in (LOAD, STORE))
        most = max(most, in_flight)
    return max(1, most)


def line_bits(program: Program) -> int:
    """Bits of a line number (not all ones) and its dirty flag.

    Raises:
        UsageError: the rest of a word is too small to count the program's lines.
    """
    bits = (program.bytes // LINE + 1).bit_length() + 1
    lines = program.requests(LOAD) + program.requests(STORE) + len(program.image)
    if bits + lines.bit_length() > 63:
        raise UsageError(
            f"{program.name} requests {lines} lines of {program.bytes} bytes: expected fewer than "
            f"{1 << (63 - bits)} lines; choose a smaller problem or impl='reference'"
        )
    return bits


def initial(program: Program, timing: Timing, slots: int, workgroups: int) -> Table:
    """The state before the first event: empty caches, no wavefront started."""
    t = timing
    per_simd = -(-slots // t.simds)
    waves = t.cus * t.simds * per_simd
    each = requests_between_waits(program)
    events = waves + t.cus + waves * each
    pages = -(-program.bytes // (1 << t.page_shift)) + 1
    index = np.arange(waves)
    simd = U_WORK + 3 * per_simd

    def filled(value: int, *shape: int) -> Table:
        return np.full(shape, value, dtype=np.int64)

    wave = filled(0, waves, WAVE)
    wave[:, W_GROUP] = -1
    wave[:, W_CU] = index // per_simd // t.simds  # wavefronts of one SIMD are adjacent
    wave[:, W_SIMD] = index // per_simd % t.simds
    request = filled(0, waves * each, REQUEST)
    request[:, Q_WAVE] = np.arange(waves * each) // each
    cu = filled(0, t.cus, CU)
    cu[:, C_LAST_PAGE] = -1
    l1 = filled(-1, t.cus, t.l1_sets, 2, t.l1_ways)  # line, ready; most recently used first
    l1[..., 1, :] = NEVER
    bits = line_bits(program)
    mask = (1 << bits) - 2
    l2 = filled(mask, t.l2_banks, t.l2_sets, 2, t.l2_ways)  # time of use, line and dirty flag in one word; ready
    l2[..., 1, :] = NEVER
    event = filled(-1, events, EVENT)
    event[:, E_PREVIOUS] = UNSCHEDULED
    tables: dict[int, Table | int] = {  # an integer is a table of that many zeros
        O_COUNTERS: len(NAMES),
        O_WAVES: wave,
        O_REQUESTS: request,
        O_CUS: cu,
        O_SIMDS: t.cus * t.simds * simd,
        O_QUEUES: t.cus * slots * each,
        O_RETURNS: t.cus * slots * each,
        O_MSHRS: filled(NEVER, t.cus, t.l1_mshrs),
        O_L1: l1,
        O_TLB1: filled(-1, t.cus, t.tlb1_sets, t.tlb1_ways),  # page; most recently used first
        O_TLB2: t.tlb2_sets * t.tlb2_ways,  # page + 1
        O_PAGES: pages * 2,  # ready, time of use in the L2 TLB (0: absent)
        O_WALKERS: filled(NEVER, t.walkers),
        O_L2: l2,
        O_BANKS: t.l2_banks * 3,  # free, index in the MSHR ring, clock
        O_L2_MSHRS: filled(NEVER, t.l2_banks, t.l2_mshrs),
        O_BUCKETS: filled(-1, HORIZON, 2),  # first, last
        O_EVENTS: event,
        O_FINISHED: filled(NEVER, workgroups),
        O_TABLE: program.table,
        O_TRIPS: program.trips,
        O_INDICES: _words(program.indices),
        O_GATHERS: program.gathers,
    }
    starts, size = {}, HEADER
    for offset, table in tables.items():
        starts[offset] = size = aligned(size, ALIGNED)
        size += table if isinstance(table, int) else table.size
    state = np.zeros(size + ALIGNED, dtype=np.int64)  # pages are allocated only when written
    state = state[-(state.ctypes.data // state.itemsize) % ALIGNED :][:size]
    for offset, table in tables.items():
        state[offset] = starts[offset]
        if not isinstance(table, int):
            state[starts[offset] : starts[offset] + table.size] = table.ravel()
    state[: len(t)] = t
    state[starts[O_WAVES] + W_WORK :][: waves * WAVE : WAVE] = (
        starts[O_SIMDS] + index // per_simd * simd + U_WORK + index % per_simd
    )
    for scalar, value in (
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
        (S_LINE_BITS, bits),
        (S_LINE_MASK, mask),
        (S_INDICES, program.indices.shape[1]),
    ):
        state[scalar] = value
    return state


def _words(indices: NDArray[np.uint16]) -> Table:
    """Four indices per word, the first in the lowest bits."""
    four = np.zeros(aligned(indices.size, 4), dtype="<u2")
    four[: indices.size] = indices.ravel()
    return four.view("<i8").astype(np.int64)


def memory(timing: DramTiming) -> Table:
    """The table of a memory: counters, parameters, channels and banks."""
    t = timing
    channels = np.full((t.channels, 6), NEVER, dtype=np.int64)  # bus free, index in the ring, four activations
    channels[:, :2] = 0
    banks = np.zeros((t.channels * t.banks, 3), dtype=np.int64)  # free, open row, tick of its activation
    banks[:, 1], banks[:, 2] = -1, NEVER
    counts = np.zeros(M_TABLE, dtype=np.int64)
    return np.concatenate([counts, np.array(t, dtype=np.int64), channels.ravel(), banks.ravel()])
