"""The reference simulator, compiled: the same events in the same order over one table of whole numbers."""

from typing import no_type_check

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.config import LINE, LINE_SHIFT
from lamina.simulate.hierarchy.counters import (
    EVENTS,
    L1_HITS,
    L1_LATENCY,
    L1_MISSES,
    L1_MSHR_HITS,
    L1_READS,
    L1_STALL,
    L1_WRITES,
    L2_HITS,
    L2_MISSES,
    L2_MSHR_HITS,
    L2_READS,
    L2_WRITE_BACKS,
    L2_WRITES,
    LDS_TICKS,
    TLB1_MISSES,
    VALU_TICKS,
    WALKS,
)
from lamina.simulate.hierarchy.program import (
    BASE,
    COLUMNS,
    COUNT,
    END,
    GATHER,
    KIND,
    LDS,
    LINES,
    MARK,
    NOWHERE,
    PER_COLUMN,
    PER_ROW,
    PER_TRIP,
    PITCH,
    ROWS,
    SCALAR,
    STORE,
    VALU,
    WAIT,
)
from lamina.simulate.hierarchy.state import (
    C_COUNT,
    C_HEAD,
    C_L1,
    C_LAST_PAGE,
    C_LDS,
    C_MSHR,
    C_RETURN_COUNT,
    C_RETURN_HEAD,
    C_RETURNED,
    CU,
    E_BUCKET,
    E_FOLLOWING,
    E_PREVIOUS,
    E_TIME,
    EVENT,
    FIRST,
    M_READS,
    M_ROW_HITS,
    M_TABLE,
    M_WRITES,
    NEVER,
    O_BANKS,
    O_BUCKETS,
    O_COUNTERS,
    O_CUS,
    O_EVENTS,
    O_FINISHED,
    O_GATHERS,
    O_INDICES,
    O_L1,
    O_L2,
    O_L2_MSHRS,
    O_MSHRS,
    O_PAGES,
    O_QUEUES,
    O_REQUESTS,
    O_RETURNS,
    O_SIMDS,
    O_TABLE,
    O_TLB1,
    O_TLB2,
    O_TRIPS,
    O_WALKERS,
    O_WAVES,
    P_ABREAST,
    P_CUS,
    P_DISPATCH,
    P_IN_ORDER,
    P_L1_FILL,
    P_L1_HIT,
    P_L1_INTERVAL,
    P_L1_MSHRS,
    P_L1_SETS,
    P_L1_TO_L2,
    P_L1_WAYS,
    P_L1_WRITE,
    P_L2_BANKS,
    P_L2_HIT,
    P_L2_INTERVAL,
    P_L2_MISS,
    P_L2_MSHRS,
    P_L2_SETS,
    P_L2_SHIFT,
    P_L2_WAYS,
    P_L2_WRITE,
    P_LDS,
    P_LDS_BUSY,
    P_PAGE_SHIFT,
    P_SCALAR,
    P_SIMDS,
    P_TLB1_SETS,
    P_TLB1_WAYS,
    P_TLB2_HIT,
    P_TLB2_SETS,
    P_TLB2_WAYS,
    P_TRANSLATE,
    P_VALU,
    P_VALU_BUSY,
    P_VALU_PACE,
    P_VALU_RATE,
    P_VMEM_ISSUE,
    P_VMEM_PATH,
    P_WALK,
    P_WALK_DISTANCE,
    P_WALKERS,
    Q_ASKED,
    Q_DONE,
    Q_FIRST,
    Q_INDEX,
    Q_PENDING,
    Q_PHASE,
    Q_STORE,
    Q_WAVE,
    REQUEST,
    S_BANK_SHIFT,
    S_COLUMNS,
    S_CYCLE,
    S_EACH,
    S_FINISHED,
    S_INDICES,
    S_LINE_BITS,
    S_LINE_MASK,
    S_LOOP,
    S_NEXT,
    S_PENDING,
    S_PER_SIMD,
    S_RING,
    S_SLOTS,
    S_TAIL,
    S_TLB_CLOCK,
    S_WALKER,
    S_WAVES,
    S_WORKGROUPS,
    U_RUN,
    U_UPDATED,
    U_WORK,
    UNSCHEDULED,
    W_COLUMN,
    W_CU,
    W_GROUP,
    W_ISSUED,
    W_OUT,
    W_PLACE,
    W_RELEASE,
    W_ROW,
    W_SIMD,
    W_TRIPS,
    W_WAITING,
    W_WORK,
    WAVE,
)
from lamina.simulate.hierarchy.timing import FRACTION, HORIZON, SLACK, TICK_SHIFT

WRITE = -1
"""The mark of a line written back; any other is that of a read."""
POINTER = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
"""Tables go as pointers: handing arrays on, with their counts of references, takes longer than the work."""
BELOW = types.int64(POINTER, types.int64, types.int64, types.int64)
"""What lies below L2: (its table, now, address, mark) -> when the line is back. A unit between L2 and memory is
another function of this signature."""
DRAM_FIELDS = 16


@intrinsic
@no_type_check
def fixed(context, table, place):
    """A word that no event changes: the compiler need not read it again after every one that does."""

    def code(context, builder, signature, arguments):
        start, words = arguments
        word = builder.load(builder.gep(start, [builder.sext(words, ir.IntType(64))]))
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        return word

    return types.int64(table, types.int32), code


@compiled(forceinline=True)
@no_type_check
def _split(value, count, shift):
    """Quotient and remainder, by shifting where ``count`` is a power of two."""
    if shift >= 0:
        return value >> shift, value & (count - 1)
    quotient = value // count
    return quotient, value - quotient * count


@compiled(BELOW)
@no_type_check
def dram(m, now, address, mark):
    """When memory has a line; ``Dram`` of the reference."""
    p = M_TABLE
    channels, shift, interval = m[p + 1], m[p + 2], m[p + 4]
    m[M_WRITES if mark == WRITE else M_READS] += 1
    unit, channel = _split(address >> shift, channels, m[p + 14])
    c = p + DRAM_FIELDS + 6 * channel
    if not m[p]:
        start = max(now, m[c])
        m[c] = start + interval
        return start + m[p + 3]
    row, bank = _split(((unit << shift) + (address & ((1 << shift) - 1))) >> m[p + 6], m[p + 5], m[p + 15])
    b = p + DRAM_FIELDS + 6 * channels + 3 * (channel * m[p + 5] + bank)
    start = max(now, m[b])
    if m[b + 1] == row:
        m[M_ROW_HITS] += 1
        command = start
    else:
        if m[b + 1] >= 0:
            start = max(start, m[b + 2] + m[p + 10]) + m[p + 8]
        oldest = c + 2 + m[c + 1]
        latest = c + 2 + (m[c + 1] + 3) % 4
        activate = max(start, m[latest] + m[p + 11], m[oldest] + m[p + 12])
        m[oldest] = activate
        m[c + 1] = (m[c + 1] + 1) % 4
        m[b + 1], m[b + 2] = row, activate
        command = activate + m[p + 7]
    data = max(command + m[p + 9], m[c])
    m[c] = data + interval
    m[b] = command + interval
    return data + interval + m[p + 13]


@compiled(forceinline=True)
@no_type_check
def _unschedule(x, event):
    e = fixed(x, O_EVENTS) + EVENT * event
    previous = x[e + E_PREVIOUS]
    if previous == UNSCHEDULED:
        return
    bucket = fixed(x, O_BUCKETS) + 2 * x[e + E_BUCKET]
    following = x[e + E_FOLLOWING]
    if previous == FIRST:
        x[bucket] = following
    else:
        x[fixed(x, O_EVENTS) + EVENT * previous + E_FOLLOWING] = following
    if following < 0:
        x[bucket + 1] = previous
    else:
        x[fixed(x, O_EVENTS) + EVENT * following + E_PREVIOUS] = previous
    x[e + E_PREVIOUS] = UNSCHEDULED
    x[S_PENDING] -= 1


@compiled(forceinline=True)
@no_type_check
def _schedule(x, event, when):
    """Put an event that is in no list behind the others of its cycle."""
    cycle = min(max(when >> TICK_SHIFT, x[S_CYCLE]), x[S_CYCLE] + HORIZON - 1)
    place = cycle & (HORIZON - 1)
    bucket = fixed(x, O_BUCKETS) + 2 * place
    last = x[bucket + 1]
    e = fixed(x, O_EVENTS) + EVENT * event
    x[e + E_FOLLOWING] = -1
    x[e + E_PREVIOUS] = last
    x[e + E_BUCKET] = place
    x[e + E_TIME] = when
    x[bucket if last < 0 else fixed(x, O_EVENTS) + EVENT * last + E_FOLLOWING] = event
    x[bucket + 1] = event
    x[S_PENDING] += 1


@compiled(forceinline=True)
@no_type_check
def _wrapped(place, size):
    return place - size if place >= size else place


@compiled(forceinline=True)
@no_type_check
def _match(x, first, count, mask, value):
    """The last word whose masked bits are ``value``, counted from 1; 0 is none."""
    found = 0
    for i in range(count):
        found = max(found, i + 1 if x[first + i] & mask == value else 0)
    return found


@compiled(forceinline=True)
@no_type_check
def _find(x, ways, line):
    """The place of a line among the ways of a set of L2, or -1."""
    return ways + _match(x, ways, fixed(x, P_L2_WAYS), fixed(x, S_LINE_MASK), line << 1) - 1


@compiled(forceinline=True)
@no_type_check
def _least(x, first, count):
    least = x[first]
    for i in range(1, count):
        least = min(least, x[first + i])
    return least


@compiled(forceinline=True)
@no_type_check
def _oldest(x, ways):
    """The least recently used way of a set of L2: the times of use are the highest bits."""
    count = fixed(x, P_L2_WAYS)
    return ways + _match(x, ways, count, -1, _least(x, ways, count)) - 1


@compiled(forceinline=True)
@no_type_check
def _to_front(x, first, way):
    value = x[way]
    while way > first:
        x[way] = x[way - 1]
        way -= 1
    x[first] = value


@compiled()
@no_type_check
def _start(x, wave, when):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_GROUP] = x[x[w + W_WORK] + 2 * fixed(x, S_PER_SIMD)] = x[S_NEXT]
    x[w + W_PLACE] = 0
    x[w + W_TRIPS] = x[fixed(x, O_TRIPS) + x[S_NEXT]]
    x[w + W_RELEASE] = 0
    x[w + W_ROW] = x[S_NEXT] // fixed(x, S_COLUMNS)
    x[w + W_COLUMN] = x[S_NEXT] % fixed(x, S_COLUMNS)
    x[S_NEXT] += 1
    _schedule(x, wave, when)


@compiled(forceinline=True)
@no_type_check
def _bank(x, now, address):
    """The L2 bank of an address, its set's ways, and when the bank takes the request."""
    row, bank = _split(address >> fixed(x, P_L2_SHIFT), fixed(x, P_L2_BANKS), fixed(x, S_BANK_SHIFT))
    index = ((row << fixed(x, P_L2_SHIFT)) + (address & ((1 << fixed(x, P_L2_SHIFT)) - 1))) >> LINE_SHIFT
    ways = fixed(x, O_L2) + 2 * fixed(x, P_L2_WAYS) * (bank * fixed(x, P_L2_SETS) + (index & (fixed(x, P_L2_SETS) - 1)))
    b = fixed(x, O_BANKS) + 3 * bank
    start = max(now, x[b])
    x[b] = start + fixed(x, P_L2_INTERVAL)
    return bank, ways, start


@compiled(forceinline=True)
@no_type_check
def _touch_l2(x, bank, way, content):
    clock = fixed(x, O_BANKS) + 3 * bank + 2
    x[clock] += 1
    x[way] = x[clock] << fixed(x, S_LINE_BITS) | content


@compiled(forceinline=True)
@no_type_check
def _make_room(x, below, m, way, now):
    if x[way] & 1:
        x[fixed(x, O_COUNTERS) + L2_WRITE_BACKS] += 1
        below(m, now, (x[way] & fixed(x, S_LINE_MASK)) // 2 * LINE, WRITE)


@compiled()
@no_type_check
def _free_first(x, first, head):
    """Let the MSHR that was free first come next; of several, the first in their order."""
    least, place, end = head, head, first + fixed(x, P_L2_MSHRS)
    for _ in range(1, fixed(x, P_L2_MSHRS)):
        place = place + 1 if place + 1 < end else first
        if x[place] < x[least]:
            least = place
    x[head], x[least] = x[least], x[head]


@compiled(forceinline=True)
@no_type_check
def _read_l2(x, below, m, now, address, mark):
    bank, ways, start = _bank(x, now, address)
    counters, count = fixed(x, O_COUNTERS), fixed(x, P_L2_WAYS)
    line = address >> LINE_SHIFT
    way = _find(x, ways, line)
    if way >= ways:
        x[counters + L2_READS] += 1
        _touch_l2(x, bank, way, line << 1 | x[way] & 1)
        ready = x[way + count]
        if ready > start:
            x[counters + L2_MSHR_HITS] += 1
            return ready
        x[counters + L2_HITS] += 1
        return start + fixed(x, P_L2_HIT)
    way = _oldest(x, ways)
    b = fixed(x, O_BANKS) + 3 * bank
    ring = fixed(x, O_L2_MSHRS) + bank * fixed(x, P_L2_MSHRS) + x[b + 1]
    first, free = fixed(x, O_L2_MSHRS) + bank * fixed(x, P_L2_MSHRS), x[ring]
    if mark and free > start:
        free = _least(x, first, fixed(x, P_L2_MSHRS))
    free = max(x[way + count], free)
    if free > start:
        if mark:
            return -free
        start = free
        x[b] = start + fixed(x, P_L2_INTERVAL)
    elif x[ring] > start:
        _free_first(x, first, ring)
    x[counters + L2_READS] += 1
    x[counters + L2_MISSES] += 1
    _make_room(x, below, m, way, start)
    _touch_l2(x, bank, way, line << 1)
    ready = below(m, start + fixed(x, P_L2_MISS), address, mark)
    x[way + count] = x[ring] = ready
    x[b + 1] = _wrapped(x[b + 1] + 1, fixed(x, P_L2_MSHRS))
    return ready


@compiled()
@no_type_check
def _write_l2(x, below, m, now, address):
    bank, ways, start = _bank(x, now, address)
    count, line = fixed(x, P_L2_WAYS), address >> LINE_SHIFT
    x[fixed(x, O_COUNTERS) + L2_WRITES] += 1
    way = _find(x, ways, line)
    if way < ways:
        way = _oldest(x, ways)
        start = max(start, x[way + count])
        _make_room(x, below, m, way, start)
    x[way + count] = max(x[way + count], start)
    _touch_l2(x, bank, way, line << 1 | 1)
    return start + fixed(x, P_L2_WRITE)


@compiled()
@no_type_check
def _walk_if_new(x, page, now):
    pages = fixed(x, O_PAGES)
    p = pages + 2 * page
    if not x[p + 1]:
        x[fixed(x, O_COUNTERS) + WALKS] += 1
        walker = fixed(x, O_WALKERS) + x[S_WALKER]
        start = max(now, x[walker])
        x[walker] = start + fixed(x, P_WALK)
        x[S_WALKER] = _wrapped(x[S_WALKER] + 1, fixed(x, P_WALKERS))
        x[p] = start + fixed(x, P_WALK) + fixed(x, P_WALK_DISTANCE)
        ways = fixed(x, O_TLB2) + fixed(x, P_TLB2_WAYS) * (page & (fixed(x, P_TLB2_SETS) - 1))
        oldest = ways
        for way in range(ways, ways + fixed(x, P_TLB2_WAYS)):
            if not x[way]:
                oldest = way
                break
            if x[pages + 2 * x[way] - 1] < x[pages + 2 * x[oldest] - 1]:
                oldest = way
        if x[oldest]:
            x[pages + 2 * x[oldest] - 1] = 0
        x[oldest] = page + 1
    x[S_TLB_CLOCK] += 1
    x[p + 1] = x[S_TLB_CLOCK]


@compiled(forceinline=True)
@no_type_check
def _translate(x, c, cu, q, bit, page, now):
    ready = x[fixed(x, O_PAGES) + 2 * page]
    if x[q + Q_ASKED] & bit:
        return 0 if ready <= now else -ready
    x[q + Q_ASKED] |= bit
    delay = 0
    if page != x[c + C_LAST_PAGE]:  # which is there, and first of its set
        x[c + C_LAST_PAGE] = page
        first = fixed(x, O_TLB1) + fixed(x, P_TLB1_WAYS) * (
            cu * fixed(x, P_TLB1_SETS) + (page & (fixed(x, P_TLB1_SETS) - 1))
        )
        way, last = first, first + fixed(x, P_TLB1_WAYS) - 1
        while x[way] != page and way < last:
            way += 1
        if x[way] != page:
            x[fixed(x, O_COUNTERS) + TLB1_MISSES] += 1
            delay = fixed(x, P_TLB2_HIT)
            _walk_if_new(x, page, now + delay)
            ready = x[fixed(x, O_PAGES) + 2 * page]
            x[way] = page
        _to_front(x, first, way)
    if ready <= now + delay:
        return delay
    x[c + C_L1] = now + fixed(x, P_L1_INTERVAL)
    return -ready


@compiled(forceinline=True)
@no_type_check
def _access_l1(x, below, m, c, cu, q, address, now, delay):
    if x[q + Q_STORE]:
        x[c + C_L1] = now + fixed(x, P_L1_INTERVAL)
        return _write_l2(x, below, m, now + delay, address) + fixed(x, P_L1_WRITE), 0
    counters, count, fill = fixed(x, O_COUNTERS), fixed(x, P_L1_WAYS), fixed(x, P_L1_FILL)
    line = address >> LINE_SHIFT
    first = fixed(x, O_L1) + 2 * count * (cu * fixed(x, P_L1_SETS) + (line & (fixed(x, P_L1_SETS) - 1)))
    way, last = first, first + count - 1
    while x[way] != line and way < last:
        way += 1
    if x[way] == line:
        ready = x[way + count]
        if ready > now:
            x[counters + L1_MSHR_HITS] += 1
            done = max(ready, now + delay)
        elif now < ready + fill:
            return 0, ready + fill
        else:
            x[counters + L1_HITS] += 1
            done = now + delay + fixed(x, P_L1_HIT)
            _to_front(x, first, way)
            _to_front(x, first + count, way + count)
    else:
        while way >= first and x[way + count] > now - fill:
            way -= 1
        ring = fixed(x, O_MSHRS) + cu * fixed(x, P_L1_MSHRS) + x[c + C_MSHR]
        if way < first:
            return 0, max(_least(x, first + count, count) + fill, x[ring])
        if x[ring] > now:
            return 0, x[ring]
        mark = x[x[q + Q_PHASE] + MARK]
        done = _read_l2(x, below, m, now + delay, address, mark)
        if done < 0:
            return 0, -done - delay
        x[counters + L1_MISSES] += 1
        done += fixed(x, P_L1_TO_L2)
        x[ring] = done
        x[c + C_MSHR] = _wrapped(x[c + C_MSHR] + 1, fixed(x, P_L1_MSHRS))
        x[way] = line
        x[way + count] = done
        _to_front(x, first, way)
        _to_front(x, first + count, way + count)
    x[c + C_L1] = now + fixed(x, P_L1_INTERVAL)
    x[counters + L1_LATENCY] += done - now
    return done, 0


@compiled()
@no_type_check
def _release(x, wave, when, now):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_OUT] -= 1
    x[w + W_RELEASE] = max(x[w + W_RELEASE], when)
    if x[w + W_WAITING] and not x[w + W_OUT]:
        x[w + W_WAITING] = 0
        _schedule(x, wave, max(now, x[w + W_RELEASE]))


@compiled()
@no_type_check
def _complete(x, cu, request, now):
    q = fixed(x, O_REQUESTS) + request * REQUEST
    x[q + Q_DONE] += fixed(x, P_VMEM_PATH)
    if not fixed(x, P_IN_ORDER):
        _release(x, x[q + Q_WAVE], x[q + Q_DONE], now)
        return
    c = fixed(x, O_CUS) + cu * CU
    size = fixed(x, S_RING)
    ring = fixed(x, O_RETURNS) + cu * size
    while x[c + C_RETURN_COUNT]:
        first = x[ring + x[c + C_RETURN_HEAD]]
        q = fixed(x, O_REQUESTS) + first * REQUEST
        if x[q + Q_PENDING]:
            return
        x[c + C_RETURN_HEAD] = _wrapped(x[c + C_RETURN_HEAD] + 1, size)
        x[c + C_RETURN_COUNT] -= 1
        x[c + C_RETURNED] = max(x[c + C_RETURNED], x[q + Q_DONE])
        _release(x, x[q + Q_WAVE], x[c + C_RETURNED], now)


@compiled(forceinline=True)
@no_type_check
def _index(x, place):
    return x[fixed(x, O_INDICES) + (place >> 2)] >> ((place & 3) << 4) & NOWHERE


@compiled()
@no_type_check
def _gather(x, q, phase):
    """Leave out the runs that lie nowhere; how many lines are left."""
    lines, pending, run = 0, 0, (1 << x[phase + LINES]) - 1
    for row in range(x[phase + ROWS]):
        if _index(x, x[q + Q_INDEX] + row) != NOWHERE:
            pending |= run << row * x[phase + LINES]
            lines += x[phase + LINES]
    x[q + Q_PENDING] = pending
    return lines


@compiled(forceinline=True)
@no_type_check
def _serve(x, below, m, cu, request, now):
    c = fixed(x, O_CUS) + cu * CU
    q = fixed(x, O_REQUESTS) + request * REQUEST
    pending = x[q + Q_PENDING]
    left = wake = place = column = 0
    run, phase, index = x[q + Q_FIRST], x[q + Q_PHASE], x[q + Q_INDEX]
    if index >= 0:
        run += _index(x, index) * x[phase + PITCH]
    while pending:
        if column == x[phase + LINES]:
            column = 0
            if index >= 0:
                index += 1
                run = x[q + Q_FIRST] + _index(x, index) * x[phase + PITCH]
            else:
                run += x[phase + PITCH]
        if not pending & 1:
            pending >>= 1
            place += 1
            column += 1
            continue
        address = run + column * LINE
        start = max(now, x[c + C_L1])
        if start - now > SLACK:
            x[q + Q_PENDING] = left | pending << place
            return start
        delay = 0
        if fixed(x, P_TRANSLATE):
            delay = _translate(x, c, cu, q, 1 << place, address >> fixed(x, P_PAGE_SHIFT), start)
        if delay < 0:
            left |= 1 << place
            wake = min(wake, -delay) if wake else -delay
        else:
            done, locked_until = _access_l1(x, below, m, c, cu, q, address, start, delay)
            if locked_until:
                x[fixed(x, O_COUNTERS) + L1_STALL] += locked_until - start
                x[c + C_L1] = locked_until
                continue
            x[q + Q_DONE] = max(x[q + Q_DONE], done)
        pending >>= 1
        place += 1
        column += 1
    x[q + Q_PENDING] = left
    if left:
        _schedule(x, fixed(x, S_WAVES) + fixed(x, P_CUS) + request, wake)
    else:
        _complete(x, cu, request, now)
    return 0


@compiled()
@no_type_check
def _serve_queue(x, below, m, cu, now):
    c = fixed(x, O_CUS) + cu * CU
    size = fixed(x, S_RING)
    ring = fixed(x, O_QUEUES) + cu * size
    while x[c + C_COUNT]:
        stalled_until = _serve(x, below, m, cu, x[ring + x[c + C_HEAD]], now)
        if stalled_until:
            _schedule(x, fixed(x, S_WAVES) + cu, stalled_until)
            return
        x[c + C_HEAD] = _wrapped(x[c + C_HEAD] + 1, size)
        x[c + C_COUNT] -= 1


@compiled(forceinline=True)
@no_type_check
def _arrive(x, below, m, cu, request, now):
    c = fixed(x, O_CUS) + cu * CU
    size = fixed(x, S_RING)
    x[fixed(x, O_QUEUES) + cu * size + _wrapped(x[c + C_HEAD] + x[c + C_COUNT], size)] = request
    x[c + C_COUNT] += 1
    if x[c + C_COUNT] == 1:
        _serve_queue(x, below, m, cu, now)


@compiled()
@no_type_check
def _request(x, below, m, wave, phase, now):
    w = fixed(x, O_WAVES) + wave * WAVE
    request = wave * fixed(x, S_EACH) + x[w + W_ISSUED]
    q = fixed(x, O_REQUESTS) + request * REQUEST
    group = x[w + W_GROUP]
    x[q + Q_FIRST] = (
        x[phase + BASE]
        + x[w + W_ROW] * x[phase + PER_ROW]
        + x[w + W_COLUMN] * x[phase + PER_COLUMN]
        + (x[fixed(x, O_TRIPS) + group] - x[w + W_TRIPS]) * x[phase + PER_TRIP]
    )
    lines = x[phase + ROWS] * x[phase + LINES]
    x[q + Q_PHASE] = phase
    x[q + Q_STORE] = x[phase + KIND] == STORE
    x[q + Q_ASKED] = 0
    x[q + Q_PENDING] = (1 << lines) - 1
    x[q + Q_INDEX] = -1
    if x[phase + GATHER] >= 0:
        trip = x[fixed(x, O_TRIPS) + group] - x[w + W_TRIPS]
        x[q + Q_INDEX] = (x[fixed(x, O_GATHERS) + group] + trip) * fixed(x, S_INDICES) + x[phase + GATHER]
        lines = _gather(x, q, phase)
    x[q + Q_DONE] = NEVER
    x[fixed(x, O_COUNTERS) + (L1_WRITES if x[q + Q_STORE] else L1_READS)] += lines
    x[w + W_ISSUED] += 1
    x[w + W_OUT] += 1
    cu = x[w + W_CU]
    if fixed(x, P_IN_ORDER):
        c = fixed(x, O_CUS) + cu * CU
        place = _wrapped(x[c + C_RETURN_HEAD] + x[c + C_RETURN_COUNT], fixed(x, S_RING))
        x[fixed(x, O_RETURNS) + cu * fixed(x, S_RING) + place] = request
        x[c + C_RETURN_COUNT] += 1
    _arrive(x, below, m, cu, request, now)


@compiled()
@no_type_check
def _share(x, cu, simd, now):
    """Let the oldest waves of a SIMD run, as many as keep it busy; ``_share`` of the reference."""
    abreast, count = fixed(x, P_ABREAST), fixed(x, S_PER_SIMD)
    first = cu * fixed(x, P_SIMDS) + simd
    u = fixed(x, O_SIMDS) + first * (U_WORK + 3 * count)
    first *= count
    works = u + U_WORK
    runs = works + count
    groups = runs + count
    crowded = x[u + U_RUN] == abreast
    done = max(0, now - x[u + U_UPDATED])
    if crowded:
        done = done * fixed(x, P_VALU_RATE) >> FRACTION
    updated = max(now, x[u + U_UPDATED])
    x[u + U_UPDATED] = updated
    ready = 0
    for i in range(count):
        work, running = x[works + i], x[runs + i]
        ready += work > 0
        x[works + i] = max(running, work - done * running)
    run = min(ready, abreast)
    x[u + U_RUN] = run
    if not ready:
        return
    changed = crowded != (run == abreast)
    for i in range(count):
        work = x[works + i]
        if not work:
            continue
        older = 0
        if ready > abreast:
            group = x[groups + i]
            for other in range(count):
                older += (x[works + other] > 0) & (x[groups + other] < group)
        if older >= abreast:
            if x[runs + i]:
                x[runs + i] = 0
                _unschedule(x, first + i)
        elif changed or not x[runs + i]:
            x[runs + i] = 1
            left = work * fixed(x, P_VALU_PACE) >> FRACTION if run == abreast else work
            _unschedule(x, first + i)
            _schedule(x, first + i, updated + left)


@compiled(forceinline=True)
@no_type_check
def _leave(x, wave, phase, after):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_PLACE] += 1
    if x[w + W_PLACE] == fixed(x, S_TAIL):
        x[w + W_TRIPS] -= 1
        if x[w + W_TRIPS] > 0:
            x[w + W_PLACE] = fixed(x, S_LOOP)
    _schedule(x, wave, after + x[phase + SCALAR] * fixed(x, P_SCALAR))


@compiled()
@no_type_check
def _step(x, below, m, wave, now):
    w = fixed(x, O_WAVES) + wave * WAVE
    if x[w + W_PLACE] == fixed(x, S_LOOP) and x[w + W_TRIPS] == 0:
        x[w + W_PLACE] = fixed(x, S_TAIL)
    phase = fixed(x, O_TABLE) + x[w + W_PLACE] * COLUMNS
    work = x[w + W_WORK]
    if x[work]:
        x[work] = x[work + fixed(x, S_PER_SIMD)] = 0
        _share(x, x[w + W_CU], x[w + W_SIMD], now)
        _leave(x, wave, phase, now)
        return
    kind, counters = x[phase + KIND], fixed(x, O_COUNTERS)
    if kind == VALU and x[phase + COUNT]:
        x[work] = x[phase + COUNT] * fixed(x, P_VALU)
        x[counters + VALU_TICKS] += x[phase + COUNT] * fixed(x, P_VALU_BUSY)
        _share(x, x[w + W_CU], x[w + W_SIMD], now)
        return
    after = now
    if kind == LDS:
        c = fixed(x, O_CUS) + x[w + W_CU] * CU
        start = max(now, x[c + C_LDS])
        busy = x[phase + COUNT] * fixed(x, P_LDS_BUSY)
        x[c + C_LDS] = start + busy
        x[counters + LDS_TICKS] += busy
        after = start + x[phase + COUNT] * fixed(x, P_LDS)
    elif kind == WAIT:
        if x[w + W_OUT]:
            x[w + W_WAITING] = 1
            return
        after = max(now, x[w + W_RELEASE])
        x[w + W_ISSUED] = 0
    elif kind == END:
        x[fixed(x, O_FINISHED) + x[w + W_GROUP]] = now
        x[S_FINISHED] += 1
        if x[S_NEXT] < fixed(x, S_WORKGROUPS):
            _start(x, wave, now + fixed(x, P_DISPATCH))
        return
    elif kind != VALU:
        _request(x, below, m, wave, phase, now)
        after = now + fixed(x, P_VMEM_ISSUE)
    _leave(x, wave, phase, after)


@compiled(types.boolean(POINTER, types.FunctionType(BELOW), POINTER, POINTER, types.int64, types.int64), nogil=True)
@no_type_check
def _advance(x, below, m, image, images, until):
    waves, cus = fixed(x, S_WAVES), fixed(x, P_CUS)
    if not x[S_NEXT]:
        for i in range(images):
            if fixed(x, P_TRANSLATE):
                _walk_if_new(x, image[i] >> fixed(x, P_PAGE_SHIFT), NEVER)
            _read_l2(x, below, m, NEVER, image[i], 0)
        for bank in range(fixed(x, P_L2_BANKS)):
            x[fixed(x, O_BANKS) + 3 * bank] = 0
        for i in range(min(cus * fixed(x, S_SLOTS), fixed(x, S_WORKGROUPS))):
            slot = i // cus
            simd = i % cus * fixed(x, P_SIMDS) + slot % fixed(x, P_SIMDS)
            _start(x, simd * fixed(x, S_PER_SIMD) + slot // fixed(x, P_SIMDS), i * fixed(x, P_DISPATCH))
    while x[S_PENDING] and x[S_FINISHED] < until:
        event = x[fixed(x, O_BUCKETS) + 2 * (x[S_CYCLE] & (HORIZON - 1))]
        if event < 0:
            x[S_CYCLE] += 1
            continue
        _unschedule(x, event)
        now = x[fixed(x, O_EVENTS) + EVENT * event + E_TIME]
        if now >> TICK_SHIFT > x[S_CYCLE]:
            _schedule(x, event, now)
            continue
        x[fixed(x, O_COUNTERS) + EVENTS] += 1
        if event < waves:
            _step(x, below, m, event, now)
        elif event < waves + cus:
            _serve_queue(x, below, m, event - waves, now)
        else:
            request = event - waves - cus
            cu = x[fixed(x, O_WAVES) + x[fixed(x, O_REQUESTS) + request * REQUEST + Q_WAVE] * WAVE + W_CU]
            _arrive(x, below, m, cu, request, now)
    return x[S_PENDING] > 0


@compiled(
    types.boolean(types.int64[::1], types.FunctionType(BELOW), types.int64[::1], types.int64[::1], types.int64),
    nogil=True,
)
@no_type_check
def advance(state, below, memory, image, until):
    """Run until so many workgroups have finished; whether events are left. Can be called again to go on.

    The first call reads the ``image`` of code and arguments through L2 and starts the first workgroups.
    """
    return _advance(state.ctypes, below, memory.ctypes, image.ctypes, image.shape[0], until)
