"""The compiled engine: the same decisions in the same order as the reference, over one integer table."""

from typing import no_type_check

from lamina.simulate.compaction_engine.config import MOST_NEEDED, VALUES_PER_LINE
from lamina.simulate.compaction_engine.counters import (
    ACCURATE,
    BUFFER_DROPPED,
    BUFFER_FULL,
    BUFFER_HITS,
    BUFFER_LATE,
    BUFFER_PEAK,
    DELIVERED,
    DIRECT,
    HASTY,
    LATENCY,
    LINES,
    PRUDENT,
    READS,
    ROUNDS,
    SEARCH,
    SIB_EVICTIONS,
    SIB_HITS,
    SIB_MISSES,
    STEPS,
    UNIT,
    VALUES,
    ZEROS,
)
from lamina.simulate.compaction_engine.reference import ACCURATE as BEST
from lamina.simulate.compaction_engine.reference import HASTY as BLIND
from lamina.simulate.compaction_engine.reference import MARK
from lamina.simulate.compaction_engine.state import (
    L_COLUMN,
    L_COUNT,
    L_END,
    L_HEAD,
    L_KNOWN,
    L_NEXT,
    L_READY,
    L_TAIL,
    L_TIME,
    L_USED,
    O_BELOW,
    O_COUNTERS,
    O_DELIVERED,
    O_LANES,
    O_LAST,
    O_SCAN,
    O_SEARCHERS,
    O_STARTS,
    O_UNITS,
    P_AHEAD,
    P_BATCH,
    P_BUFFER,
    P_BUFFER_LINES,
    P_DEPTH,
    P_DIRECT,
    P_LOOKUP,
    P_LRU,
    P_MAPPING,
    P_PER_LINE,
    P_PREFETCH,
    P_SEARCH,
    P_SEARCHERS,
    P_SETS,
    P_SLIDING,
    P_SPARE,
    P_STEP,
    P_UNIT,
    P_UNITS,
    P_WAYS,
    R_BASE,
    R_PITCH,
    R_SOURCE,
    S_CLOCK,
    S_COLUMNS,
    S_HELD,
    S_LANE,
    S_LINES,
)
from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.config import LINE, LINE_SHIFT
from lamina.simulate.hierarchy.core import BELOW, DRAM_FIELDS, dram
from lamina.simulate.hierarchy.state import M_TABLE, NEVER


@compiled(forceinline=True)
@no_type_check
def _count(m, e, counter, by):
    m[m[e + O_COUNTERS] + counter] += by


@compiled()
@no_type_check
def _drop(m, e, lane):
    left = m[lane + L_TAIL] - m[lane + L_HEAD]
    m[e + S_HELD] -= left
    _count(m, e, BUFFER_DROPPED, left)
    m[lane + L_HEAD] = m[lane + L_TAIL]


@compiled()
@no_type_check
def _entry(m, e, column):
    size = m[e + S_LANE]
    first = m[e + O_LANES] + size * m[e + P_WAYS] * (column % m[e + P_SETS])
    last = first + size * m[e + P_WAYS]
    found, oldest = -1, first
    for lane in range(first, last, size):
        if m[lane + L_COLUMN] == column:
            found = lane
            break
        if m[lane + L_USED] < m[oldest + L_USED]:
            oldest = lane
    m[e + S_CLOCK] += 1
    if found >= 0:
        _count(m, e, SIB_HITS, 1)
        if m[e + P_LRU]:
            m[found + L_USED] = m[e + S_CLOCK]
        return found
    _count(m, e, SIB_MISSES, 1)
    _count(m, e, SIB_EVICTIONS, m[oldest + L_COLUMN] >= 0)
    _drop(m, e, oldest)
    for field in range(L_READY):
        m[oldest + field] = 0
    m[oldest + L_COLUMN] = column
    m[oldest + L_USED] = m[e + S_CLOCK]
    m[oldest + L_TIME] = NEVER
    return oldest


@compiled(forceinline=True)
@no_type_check
def _mapped(m, lane, delivered, line):
    behind = m[lane + L_END] - 1 - line
    return (behind + delivered if behind < 0 else behind) < m[lane + L_COUNT]


@compiled(forceinline=True)
@no_type_check
def _reach(m, e, lane, delivered, start, line):
    if m[e + P_DIRECT] or (m[e + P_SEARCH] == BEST and _mapped(m, lane, delivered, line)):
        return m[m[e + O_LAST] + start + line]
    return m[m[e + O_SCAN] + start + line]


@compiled(forceinline=True)
@no_type_check
def _first(m, e, below, start, line):
    if line == 0:
        return 0
    before = m[m[e + O_LAST] + start + line - 1]
    return before if m[below + before + 1] > line * m[e + P_PER_LINE] else before + 1


@compiled()
@no_type_check
def _ahead(m, e, lane, delivered, start, line):
    last = _reach(m, e, lane, delivered, start, line)
    if m[e + P_PREFETCH]:
        for following in range(line + 1, min(line + 1 + m[e + P_AHEAD], delivered)):
            if not _mapped(m, lane, delivered, following):
                break
            last = _reach(m, e, lane, delivered, start, following)
    return last


@compiled(forceinline=True)
@no_type_check
def _wanted(m, e, lane, target, last, bounded):
    following = m[lane + L_NEXT]
    if following <= target:
        return True
    if following >= m[e + S_LINES] or not m[e + P_PREFETCH] or (bounded and following > last):
        return False
    if m[e + S_HELD] + m[e + P_SPARE] > m[e + P_BUFFER_LINES]:
        _count(m, e, BUFFER_FULL, 1)
        return False
    return m[lane + L_TAIL] - m[lane + L_HEAD] + m[e + P_SPARE] <= m[e + P_DEPTH]


@compiled(forceinline=True)
@no_type_check
def _fetch(m, e, column, below, memory_line, now):
    address = m[e + R_BASE] + column * m[e + R_SOURCE] + memory_line * LINE
    came = dram(m, now, address, MARK)
    unit = m[e + O_UNITS] + (address >> LINE_SHIFT) % m[e + P_UNITS]
    done = max(came, m[unit]) + m[e + P_UNIT]
    m[unit] = done
    values = m[below + memory_line + 1] - m[below + memory_line]
    _count(m, e, LINES, 1)
    _count(m, e, VALUES, values)
    _count(m, e, ZEROS, VALUES_PER_LINE - values)
    _count(m, e, UNIT, m[e + P_UNIT])
    return done


@compiled()
@no_type_check
def _record(m, e, lane, delivered, below, start, line):
    mapping = m[e + P_MAPPING]
    full = m[lane + L_COUNT] == mapping
    if m[e + P_DIRECT] or _mapped(m, lane, delivered, line) or (full and not m[e + P_SLIDING]):
        return
    end = m[lane + L_END]
    if line != (end - delivered if end >= delivered else end):
        m[lane + L_COUNT] = 0
    m[lane + L_END] = line + 1
    place = m[e + O_LAST] + start + line
    needed = 0
    for memory_line in range(m[place - 1] + 1 if line else 0, m[place] + 1):
        needed += m[below + memory_line + 1] > m[below + memory_line]
    m[lane + L_COUNT] = min(m[lane + L_COUNT] + 1, mapping) if needed <= MOST_NEEDED else 0


@compiled()
@no_type_check
def _complete(m, e, lane, delivered, below, start, line, ready):
    tail = m[lane + L_TAIL]
    while tail < delivered and _reach(m, e, lane, delivered, start, tail) < m[lane + L_NEXT]:
        if tail == line:
            ready = m[lane + L_TIME]
        elif tail > line:
            m[lane + L_READY + tail % m[e + P_DEPTH]] = m[lane + L_TIME]
            m[e + S_HELD] += 1
            peak = m[e + O_COUNTERS] + BUFFER_PEAK
            m[peak] = max(m[peak], m[e + S_HELD])
        _record(m, e, lane, delivered, below, start, tail)
        tail += 1
    m[lane + L_TAIL] = tail
    return ready


@compiled()
@no_type_check
def _search(m, e, lane, pattern, line, now, found):
    start, delivered = m[m[e + O_STARTS] + pattern], m[m[e + O_DELIVERED] + pattern]
    below = m[e + O_BELOW] + pattern * (m[e + S_LINES] + 1)
    direct, prefetch, search = m[e + P_DIRECT], m[e + P_PREFETCH], m[e + P_SEARCH]
    follows = line >= m[lane + L_TAIL]
    exact = direct != 0 or (search == BEST and _mapped(m, lane, delivered, line))
    steps = 0
    if exact:
        m[lane + L_NEXT] = max(m[lane + L_NEXT] if follows else 0, _first(m, e, below, start, line))
        m[lane + L_TAIL] = line
        if not direct:
            steps = m[lane + L_COUNT] - 1 - (m[lane + L_END] - 1 - line) % delivered
    elif not follows:
        m[lane + L_NEXT] = m[lane + L_TAIL] = 0
    if direct:
        _count(m, e, DIRECT, 1)
    elif exact:
        _count(m, e, ACCURATE, 1)
    elif search != BLIND and m[lane + L_NEXT] < m[lane + L_KNOWN]:
        _count(m, e, PRUDENT, 1)
    else:
        _count(m, e, HASTY, 1)
    m[lane + L_TIME] = max(m[lane + L_TIME], found)
    m[lane + L_HEAD] = line + 1
    target, ready = _reach(m, e, lane, delivered, start, line), m[lane + L_TIME]
    wait = ready - now
    bounded = exact and not direct
    last = _ahead(m, e, lane, delivered, start, line) if bounded else target
    while True:
        if exact and not (direct and prefetch):
            left = m[e + S_LINES]
        elif prefetch:
            left = max(m[e + P_BATCH], target + 1 - m[lane + L_NEXT]) if direct else m[e + P_BATCH]
        else:
            missing = (line + 1) * m[e + P_PER_LINE] - m[below + m[lane + L_NEXT]]
            left = max(1, -(-missing // VALUES_PER_LINE))
        ready = _complete(m, e, lane, delivered, below, start, line, ready)
        while left and _wanted(m, e, lane, target, last, bounded):
            memory_line = m[lane + L_NEXT]
            m[lane + L_NEXT] += 1
            skipped = not direct and search != BLIND and memory_line < m[lane + L_KNOWN]
            if not skipped or m[below + memory_line + 1] > m[below + memory_line]:
                steps += 1
                left -= 1
                done = _fetch(m, e, m[lane + L_COLUMN], below, memory_line, now) + wait + steps * m[e + P_STEP]
                m[lane + L_TIME] = max(m[lane + L_TIME], done)
            m[lane + L_KNOWN] = max(m[lane + L_KNOWN], m[lane + L_NEXT])
            ready = _complete(m, e, lane, delivered, below, start, line, ready)
        if m[lane + L_NEXT] > target:
            return ready, steps
        wait = m[lane + L_TIME] - now
        _count(m, e, ROUNDS, 1)


@compiled()
@no_type_check
def _serve(m, e, now, column, line):
    pattern, per_line = column % m[e + S_COLUMNS], m[e + P_PER_LINE]
    searcher = m[e + O_SEARCHERS] + column % m[e + P_SEARCHERS]
    found = max(now, m[searcher]) + m[e + P_LOOKUP]
    m[searcher] = found
    _count(m, e, SEARCH, m[e + P_LOOKUP])
    if line >= m[m[e + O_DELIVERED] + pattern]:
        return found + m[e + P_BUFFER]
    lines = m[e + S_LINES]
    total = m[m[e + O_BELOW] + pattern * (lines + 1) + lines]
    _count(m, e, DELIVERED, min(per_line, total - line * per_line))
    lane = _entry(m, e, column)
    if m[lane + L_HEAD] <= line < m[lane + L_TAIL]:
        ready = m[lane + L_READY + line % m[e + P_DEPTH]]
        _count(m, e, BUFFER_HITS, 1)
        _count(m, e, BUFFER_LATE, ready > found)
        m[e + S_HELD] -= line + 1 - m[lane + L_HEAD]
        _count(m, e, BUFFER_DROPPED, line - m[lane + L_HEAD])
        m[lane + L_HEAD] = line + 1
        return max(found, ready) + m[e + P_BUFFER]
    _drop(m, e, lane)
    ready, steps = _search(m, e, lane, pattern, line, now, found)
    m[searcher] += steps * m[e + P_STEP]
    _count(m, e, STEPS, steps)
    _count(m, e, SEARCH, steps * m[e + P_STEP])
    return ready + m[e + P_BUFFER]


@compiled(BELOW)
@no_type_check
def read(m, now, address, mark):
    """Tick at which the engine or memory returns a line; ``CompactionEngine`` of the reference."""
    if mark != MARK:
        return dram(m, now, address, mark)
    e = M_TABLE + DRAM_FIELDS + m[M_TABLE + 1] * (6 + 3 * m[M_TABLE + 5])
    offset = address - m[e + R_BASE]
    column = offset // m[e + R_PITCH]
    done = _serve(m, e, now, column, (offset - column * m[e + R_PITCH]) >> LINE_SHIFT)
    _count(m, e, READS, 1)
    _count(m, e, LATENCY, done - now)
    return done
