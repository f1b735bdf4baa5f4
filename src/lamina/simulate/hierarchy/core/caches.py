"""Compiled L1, TLBs and L2: lookups, and the ticks at which lines arrive."""

from typing import no_type_check

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.config import LINE, LINE_SHIFT
from lamina.simulate.hierarchy.core.below import WRITE, fixed, split
from lamina.simulate.hierarchy.core.ring import wrapped
from lamina.simulate.hierarchy.counters import (
    L1_HITS,
    L1_LATENCY,
    L1_MISSES,
    L1_MSHR_HITS,
    L2_HITS,
    L2_MISSES,
    L2_MSHR_HITS,
    L2_READS,
    L2_WRITE_BACKS,
    L2_WRITES,
    TLB1_MISSES,
    WALKS,
)
from lamina.simulate.hierarchy.program import MARK
from lamina.simulate.hierarchy.state import (
    C_L1,
    C_LAST_PAGE,
    C_MSHR,
    O_BANKS,
    O_COUNTERS,
    O_L1,
    O_L2,
    O_L2_MSHRS,
    O_MSHRS,
    O_PAGES,
    O_TLB1,
    O_TLB2,
    O_WALKERS,
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
    P_TLB1_SETS,
    P_TLB1_WAYS,
    P_TLB2_HIT,
    P_TLB2_SETS,
    P_TLB2_WAYS,
    P_WALK,
    P_WALK_DISTANCE,
    P_WALKERS,
    Q_PHASE,
    Q_REQUESTED,
    Q_STORE,
    S_BANK_SHIFT,
    S_LINE_BITS,
    S_LINE_MASK,
    S_TLB_CLOCK,
    S_WALKER,
)


@compiled(forceinline=True)
@no_type_check
def _match(x, first, count, mask, value):
    """The 1-based index of the last word whose masked bits are ``value``; 0 if there is none."""
    found = 0
    for i in range(count):
        found = max(found, i + 1 if x[first + i] & mask == value else 0)
    return found


@compiled(forceinline=True)
@no_type_check
def _find(x, ways, line):
    """The index of a line among the ways of an L2 set, or -1."""
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
    """The LRU way of an L2 set: the times of use are the highest bits."""
    count = fixed(x, P_L2_WAYS)
    return ways + _match(x, ways, count, -1, _least(x, ways, count)) - 1


@compiled(forceinline=True)
@no_type_check
def _make_mru(x, first, way):
    value = x[way]
    while way > first:
        x[way] = x[way - 1]
        way -= 1
    x[first] = value


@compiled(forceinline=True)
@no_type_check
def _bank(x, now, address):
    """The L2 bank of an address, the ways of its set, and the tick at which the bank accepts the request."""
    row, bank = split(address >> fixed(x, P_L2_SHIFT), fixed(x, P_L2_BANKS), fixed(x, S_BANK_SHIFT))
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
def _evict(x, below, m, way, now):
    if x[way] & 1:
        x[fixed(x, O_COUNTERS) + L2_WRITE_BACKS] += 1
        below(m, now, (x[way] & fixed(x, S_LINE_MASK)) // 2 * LINE, WRITE)


@compiled()
@no_type_check
def _free_first(x, first, head):
    """Move the MSHR that becomes free first to the head; of several, the first in order."""
    least, index, end = head, head, first + fixed(x, P_L2_MSHRS)
    for _ in range(1, fixed(x, P_L2_MSHRS)):
        index = index + 1 if index + 1 < end else first
        if x[index] < x[least]:
            least = index
    x[head], x[least] = x[least], x[head]


@compiled(forceinline=True)
@no_type_check
def read_l2(x, below, m, now, address, mark):
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
    _evict(x, below, m, way, start)
    _touch_l2(x, bank, way, line << 1)
    ready = below(m, start + fixed(x, P_L2_MISS), address, mark)
    x[way + count] = x[ring] = ready
    x[b + 1] = wrapped(x[b + 1] + 1, fixed(x, P_L2_MSHRS))
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
        _evict(x, below, m, way, start)
    x[way + count] = max(x[way + count], start)
    _touch_l2(x, bank, way, line << 1 | 1)
    return start + fixed(x, P_L2_WRITE)


@compiled()
@no_type_check
def walk_if_new(x, page, now):
    pages = fixed(x, O_PAGES)
    p = pages + 2 * page
    if not x[p + 1]:
        x[fixed(x, O_COUNTERS) + WALKS] += 1
        walker = fixed(x, O_WALKERS) + x[S_WALKER]
        start = max(now, x[walker])
        x[walker] = start + fixed(x, P_WALK)
        x[S_WALKER] = wrapped(x[S_WALKER] + 1, fixed(x, P_WALKERS))
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
def translate(x, c, cu, q, bit, page, now):
    ready = x[fixed(x, O_PAGES) + 2 * page]
    if x[q + Q_REQUESTED] & bit:
        return 0 if ready <= now else -ready
    x[q + Q_REQUESTED] |= bit
    delay = 0
    if page != x[c + C_LAST_PAGE]:  # the last page hits, and is most recently used
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
            walk_if_new(x, page, now + delay)
            ready = x[fixed(x, O_PAGES) + 2 * page]
            x[way] = page
        _make_mru(x, first, way)
    if ready <= now + delay:
        return delay
    x[c + C_L1] = now + fixed(x, P_L1_INTERVAL)
    return -ready


@compiled(forceinline=True)
@no_type_check
def access_l1(x, below, m, c, cu, q, address, now, delay):
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
            _make_mru(x, first, way)
            _make_mru(x, first + count, way + count)
    else:
        while way >= first and x[way + count] > now - fill:
            way -= 1
        ring = fixed(x, O_MSHRS) + cu * fixed(x, P_L1_MSHRS) + x[c + C_MSHR]
        if way < first:
            return 0, max(_least(x, first + count, count) + fill, x[ring])
        if x[ring] > now:
            return 0, x[ring]
        mark = x[x[q + Q_PHASE] + MARK]
        done = read_l2(x, below, m, now + delay, address, mark)
        if done < 0:
            return 0, -done - delay
        x[counters + L1_MISSES] += 1
        done += fixed(x, P_L1_TO_L2)
        x[ring] = done
        x[c + C_MSHR] = wrapped(x[c + C_MSHR] + 1, fixed(x, P_L1_MSHRS))
        x[way] = line
        x[way + count] = done
        _make_mru(x, first, way)
        _make_mru(x, first + count, way + count)
    x[c + C_L1] = now + fixed(x, P_L1_INTERVAL)
    x[counters + L1_LATENCY] += done - now
    return done, 0
