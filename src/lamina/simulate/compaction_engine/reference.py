"""The reference implementation of the compaction engine in plain Python.

A line that misses in L2 is looked up in the prefetch buffer or searched for, fetched, compacted and delivered. Memory
and compaction units are reserved when the line is requested or when its data arrives. Waits for a search or an earlier
round are added to the delivery time and reserve nothing in the future.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from lamina.simulate.compaction_engine.config import MOST_NEEDED, VALUES_PER_LINE, EngineTiming
from lamina.simulate.compaction_engine.counters import NAMES
from lamina.simulate.compaction_engine.stream import Layout
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.reference_memory import NEVER, Dram

MARK = 1
"""The mark of an extended load, whose lines the engine delivers."""
HASTY, PRUDENT, ACCURATE = range(3)


class Region(NamedTuple):
    """Addresses of the matrix: line i of column j is requested at ``base + j * pitch + 64 * i`` and fetched from
    ``base + j * source + 64 * l``. Columns repeat those of the layout."""

    base: int
    pitch: int
    source: int


@dataclass(eq=False)
class Lane:
    """A column: its entry in the information block and its lane of the prefetch buffer.

    ``known`` lines of memory have their bits; the mapping has the ``count`` compacted lines before ``end``, wrapping
    around the end of the column. The lane has processed memory up to line ``next`` by ``time``; it stores compacted
    lines ``head`` to ``tail``.
    """

    column: int = -1
    used: int = 0
    known: int = 0
    end: int = 0
    count: int = 0
    next: int = 0
    time: int = NEVER
    head: int = 0
    tail: int = 0
    ready: dict[int, int] = field(default_factory=dict)


class CompactionEngine:
    """Serves marked reads; all others are forwarded to memory."""

    def __init__(self, timing: EngineTiming, layout: Layout, region: Region, dram: Dram):
        self.timing, self.layout, self.region, self.dram = timing, layout, region, dram
        self.counters = dict.fromkeys(NAMES, 0)
        self.entries: defaultdict[int, list[Lane]] = defaultdict(lambda: [Lane() for _ in range(timing.ways)])
        self.clock = 0
        self.held = 0
        self.searcher_free = [0] * timing.searchers
        self.unit_free = [0] * timing.units

    def write(self, now: int, address: int) -> None:
        self.dram.write(now, address)

    def read(self, now: int, address: int, mark: int) -> int:
        if mark != MARK:
            return self.dram.read(now, address, mark)
        column, place = divmod(address - self.region.base, self.region.pitch)
        done = self._serve(now, column, place // LINE)
        self.counters["engine_reads"] += 1
        self.counters["engine_latency_ticks"] += done - now
        return done

    def _serve(self, now: int, column: int, line: int) -> int:
        t, pattern, searcher = self.timing, column % self.layout.columns, column % self.timing.searchers
        found = max(now, self.searcher_free[searcher]) + t.lookup
        self.searcher_free[searcher] = found
        self.counters["engine_search_ticks"] += t.lookup
        if line >= self.layout.delivered[pattern]:
            return found + t.buffer
        values = int(self.layout.below[pattern, -1]) - line * t.per_line
        self.counters["engine_delivered"] += min(t.per_line, values)
        lane = self._entry(column)
        if lane.head <= line < lane.tail:
            ready = lane.ready[line]
            self.counters["engine_buffer_hits"] += 1
            self.counters["engine_buffer_late"] += ready > found
            self.held -= line + 1 - lane.head
            self.counters["engine_buffer_dropped"] += line - lane.head
            lane.head = line + 1
            return max(found, ready) + t.buffer
        self._drop(lane)
        ready, steps = self._search(lane, pattern, line, now, found)
        self.searcher_free[searcher] += steps * t.step
        self.counters["engine_steps"] += steps
        self.counters["engine_search_ticks"] += steps * t.step
        return ready + t.buffer

    def _entry(self, column: int) -> Lane:
        """The entry of a column; a new one replaces the oldest."""
        ways = self.entries[column % self.timing.sets]
        lane = next((way for way in ways if way.column == column), None)
        self.counters["engine_sib_misses" if lane is None else "engine_sib_hits"] += 1
        if lane is None:
            oldest = min(ways, key=lambda way: way.used)
            self.counters["engine_sib_evictions"] += oldest.column >= 0
            self._drop(oldest)
            lane = ways[ways.index(oldest)] = Lane(column, self.clock + 1)
        elif self.timing.lru:
            lane.used = self.clock + 1
        self.clock += 1
        return lane

    def _drop(self, lane: Lane) -> None:
        self.held -= lane.tail - lane.head
        self.counters["engine_buffer_dropped"] += lane.tail - lane.head
        lane.head = lane.tail

    def _mapped(self, lane: Lane, pattern: int, line: int) -> bool:
        return (lane.end - 1 - line) % int(self.layout.delivered[pattern]) < lane.count

    def _exact(self, lane: Lane, pattern: int, line: int) -> bool:
        t = self.timing
        return bool(t.direct) or (t.search == ACCURATE and self._mapped(lane, pattern, line))

    def _reach(self, lane: Lane, pattern: int, line: int) -> int:
        """The line of memory that must be processed before a compacted line can be delivered: its last one if its
        mapping is known, else the one that shows whether the column continues."""
        table = self.layout.last if self._exact(lane, pattern, line) else self.layout.scan
        return int(table[self.layout.starts[pattern] + line])

    def _search(self, lane: Lane, pattern: int, line: int, now: int, found: int) -> tuple[int, int]:
        """The tick at which a compacted line is available, and the search steps. Lines in flight are profiled first."""
        t, follows = self.timing, line >= lane.tail
        exact = self._exact(lane, pattern, line)
        steps = 0
        if exact:
            lane.next = max(lane.next if follows else 0, self._first(pattern, line))
            lane.tail = line
            if not t.direct:
                steps = lane.count - 1 - (lane.end - 1 - line) % int(self.layout.delivered[pattern])
        elif not follows:
            lane.next = lane.tail = 0
        self._count_mode(lane, exact)
        lane.time = max(lane.time, found)
        lane.head = line + 1
        target, wait, ready = self._reach(lane, pattern, line), lane.time - now, lane.time
        last = target
        if exact and not t.direct:
            last = self._ahead(lane, pattern, line)
        while True:
            left = self._round(lane, pattern, line, target, exact)
            ready = self._complete(lane, pattern, line, ready)
            while left and self._wanted(lane, line, target, last, exact):
                memory_line = lane.next
                lane.next += 1
                if t.direct or self._has_values(lane, pattern, memory_line):
                    steps += 1
                    left -= 1
                    done = self._fetch(lane.column, pattern, memory_line, now) + wait + steps * t.step
                    lane.time = max(lane.time, done)
                lane.known = max(lane.known, lane.next)
                ready = self._complete(lane, pattern, line, ready)
            if lane.next > target:
                return ready, steps
            wait = lane.time - now
            self.counters["engine_rounds"] += 1

    def _first(self, pattern: int, line: int) -> int:
        """The line of memory with the first value of a compacted line, or the line after that of the previous one."""
        if line == 0:
            return 0
        before = int(self.layout.last[self.layout.starts[pattern] + line - 1])
        return before if self.layout.below[pattern, before + 1] > line * self.timing.per_line else before + 1

    def _count_mode(self, lane: Lane, exact: bool) -> None:
        t = self.timing
        if t.direct:
            mode = "direct"
        elif exact:
            mode = "accurate"
        else:
            mode = "prudent" if t.search >= PRUDENT and lane.next < lane.known else "hasty"
        self.counters[f"engine_{mode}"] += 1

    def _ahead(self, lane: Lane, pattern: int, line: int) -> int:
        """The last line of memory that an accurate search requests."""
        last = self._reach(lane, pattern, line)
        if self.timing.prefetch:
            for following in range(line + 1, min(line + 1 + self.timing.ahead, int(self.layout.delivered[pattern]))):
                if not self._mapped(lane, pattern, following):
                    break
                last = self._reach(lane, pattern, following)
        return last

    def _round(self, lane: Lane, pattern: int, line: int, target: int, exact: bool) -> int:
        """Lines that can be requested before their content is known: all mapped ones, as many as prefetching permits,
        or the minimum that the compacted line needs."""
        t = self.timing
        if exact and not (t.direct and t.prefetch):
            return self.layout.lines
        if t.prefetch:
            return max(t.batch, target + 1 - lane.next) if t.direct else t.batch
        missing = (line + 1) * t.per_line - int(self.layout.below[pattern, lane.next])
        return max(1, -(-missing // VALUES_PER_LINE))

    def _wanted(self, lane: Lane, line: int, target: int, last: int, exact: bool) -> bool:
        """Whether the next line of memory is needed or may be prefetched."""
        t = self.timing
        if lane.next <= target:
            return True
        if lane.next >= self.layout.lines or not t.prefetch or (exact and not t.direct and lane.next > last):
            return False
        if self.held + t.spare > t.buffer_lines:
            self.counters["engine_buffer_full"] += 1
            return False
        return lane.tail - lane.head + t.spare <= t.depth

    def _has_values(self, lane: Lane, pattern: int, memory_line: int) -> bool:
        """Whether a line must be fetched; it may be skipped only if its bit is known to be zero."""
        if self.timing.search == HASTY or memory_line >= lane.known:
            return True
        below = self.layout.below[pattern]
        return bool(below[memory_line + 1] > below[memory_line])

    def _fetch(self, column: int, pattern: int, memory_line: int, now: int) -> int:
        """The tick at which a line has passed memory and its compaction unit."""
        address = self.region.base + column * self.region.source + memory_line * LINE
        came = self.dram.read(now, address, MARK)
        unit = address // LINE % self.timing.units
        done = max(came, self.unit_free[unit]) + self.timing.unit
        self.unit_free[unit] = done
        below = self.layout.below[pattern]
        values = int(below[memory_line + 1] - below[memory_line])
        self.counters["engine_lines"] += 1
        self.counters["engine_values"] += values
        self.counters["engine_zeros"] += VALUES_PER_LINE - values
        self.counters["engine_unit_ticks"] += self.timing.unit
        return done

    def _complete(self, lane: Lane, pattern: int, line: int, ready: int) -> int:
        """Advance over complete compacted lines: earlier ones are dropped, the requested one is delivered, others stay
        in the buffer. Returns the tick at which the requested one is ready."""
        while lane.tail < self.layout.delivered[pattern] and self._reach(lane, pattern, lane.tail) < lane.next:
            if lane.tail == line:
                ready = lane.time
            elif lane.tail > line:
                lane.ready[lane.tail] = lane.time
                self.held += 1
                self.counters["engine_buffer_peak"] = max(self.counters["engine_buffer_peak"], self.held)
            self._record(lane, pattern, lane.tail)
            lane.tail += 1
        return ready

    def _record(self, lane: Lane, pattern: int, line: int) -> None:
        """Add the mapping of a compacted line; a full mapping drops its oldest."""
        t = self.timing
        if t.direct or self._mapped(lane, pattern, line) or (not t.sliding and lane.count == t.mapping):
            return
        if line != lane.end % int(self.layout.delivered[pattern]):
            lane.count = 0
        lane.end = line + 1
        lane.count = min(lane.count + 1, t.mapping) if self._needed(pattern, line) <= MOST_NEEDED else 0

    def _needed(self, pattern: int, line: int) -> int:
        """Number of further lines with values that a compacted line needs."""
        place = self.layout.starts[pattern] + line
        first = int(self.layout.last[place - 1]) + 1 if line else 0
        below = self.layout.below[pattern, first : int(self.layout.last[place]) + 2]
        return int((below[1:] > below[:-1]).sum())
