"""The reference implementation of the L2 cache and of memory in plain Python, one class per component.

All times are ticks. A component is reserved only by an event at that time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Protocol

from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.timing import DramTiming, Timing

NEVER = -(2**60)
"""The tick of events that have not happened."""


class Below(Protocol):
    """The level below L2; a unit between L2 and memory implements this."""

    def read(self, now: int, address: int, mark: int) -> int:
        """The tick at which the line at ``address`` returns to L2."""

    def write(self, now: int, address: int) -> None:
        """Accept a write-back."""


class Dram:
    """DRAM channels: a latency and a bandwidth, or banks with open rows and activation limits."""

    def __init__(self, timing: DramTiming):
        self.timing = timing
        banks = timing.channels * timing.banks
        self.bus_free = [0] * timing.channels
        self.bank_free = [0] * banks
        self.open_row = [-1] * banks
        self.opened = [NEVER] * banks
        self.activations = [deque([NEVER] * 4, maxlen=4) for _ in range(timing.channels)]
        self.reads = self.writes = self.row_hits = 0

    def read(self, now: int, address: int, mark: int) -> int:
        self.reads += 1
        return self._access(now, address)

    def write(self, now: int, address: int) -> None:
        self.writes += 1
        self._access(now, address)

    def _access(self, now: int, address: int) -> int:
        t = self.timing
        unit, channel = divmod(address >> t.shift, t.channels)
        if not t.banked:
            start = max(now, self.bus_free[channel])
            self.bus_free[channel] = start + t.interval
            return start + t.latency
        row, bank = divmod((unit << t.shift) + address % (1 << t.shift) >> t.row_shift, t.banks)
        bank += channel * t.banks
        command = self._command(max(now, self.bank_free[bank]), channel, bank, row)
        data = max(command + t.cl, self.bus_free[channel])
        self.bus_free[channel] = data + t.interval
        self.bank_free[bank] = command + t.interval
        return data + t.interval + t.controller

    def _command(self, start: int, channel: int, bank: int, row: int) -> int:
        """The tick of the column command of a bank, after its row has been activated if necessary."""
        t, recent = self.timing, self.activations[channel]
        if self.open_row[bank] == row:
            self.row_hits += 1
            return start
        if self.open_row[bank] >= 0:
            start = max(start, self.opened[bank] + t.ras) + t.rp
        activate = max(start, recent[-1] + t.rrd, recent[0] + t.faw)
        recent.append(activate)
        self.open_row[bank], self.opened[bank] = row, activate
        return activate + t.rcd


@dataclass
class Way:
    """One way of a cache: its line, the tick at which its data arrives, and the time of its last use."""

    line: int = -1
    ready: int = NEVER
    used: int = 0
    dirty: bool = False


class Tags:
    """A set-associative cache with LRU replacement."""

    def __init__(self, sets: int, ways: int):
        self.count = sets
        self.sets: defaultdict[int, list[Way]] = defaultdict(lambda: [Way() for _ in range(ways)])
        self.clock = 0

    def find(self, index: int, line: int) -> Way | None:
        return next((way for way in self.sets[index % self.count] if way.line == line), None)

    def oldest(self, index: int, unlocked: int | None = None) -> Way:
        """The victim: the LRU way whose data arrived by ``unlocked``, else the first to be unlocked."""
        ways = self.sets[index % self.count]
        free = [way for way in ways if unlocked is None or way.ready <= unlocked]
        return min(free, key=lambda way: way.used) if free else min(ways, key=lambda way: way.ready)

    def touch(self, way: Way) -> None:
        self.clock += 1
        way.used = self.clock


class L2:
    """The banks of the L2 cache, which share the level below.

    Its counters are those of the GPU.
    """

    def __init__(self, timing: Timing, below: Below, counters: dict[str, int]):
        t = timing
        self.timing, self.below, self.counters = timing, below, counters
        self.banks = [Tags(t.l2_sets, t.l2_ways) for _ in range(t.l2_banks)]
        self.free = [0] * t.l2_banks
        self.mshrs = [deque([NEVER] * t.l2_mshrs, maxlen=t.l2_mshrs) for _ in range(t.l2_banks)]

    def start(self) -> None:
        """Free the banks: what was read before is not timed."""
        self.free = [0] * self.timing.l2_banks

    def _accept(self, now: int, address: int) -> tuple[int, int, int]:
        """The L2 bank of an address, its set, and the tick at which the bank accepts the request."""
        t = self.timing
        row, bank = divmod(address >> t.l2_shift, t.l2_banks)
        index = ((row << t.l2_shift) + address % (1 << t.l2_shift)) // LINE
        start = max(now, self.free[bank])
        self.free[bank] = start + t.l2_interval
        return bank, index, start

    def read(self, now: int, address: int, mark: int) -> int:
        """The tick at which a line is available. A marked read that the bank cannot accept returns minus the tick at
        which it can.

        Other reads wait for an MSHR of the bank, which become free in order, and reserve the level below from then on.
        A unit that serves several banks cannot be reserved ahead: earlier requests would have to wait behind later
        ones; and its latencies vary so much that in-order MSHRs would block requests that have a free one.
        """
        t, line = self.timing, address // LINE
        bank, index, start = self._accept(now, address)
        tags = self.banks[bank]
        way = tags.find(index, line)
        if way is not None:
            self.counters["l2_reads"] += 1
            tags.touch(way)
            self.counters["l2_mshr_hits" if way.ready > start else "l2_hits"] += 1
            return way.ready if way.ready > start else start + t.l2_hit
        way, mshrs = tags.oldest(index), self.mshrs[bank]
        free = max(way.ready, min(mshrs) if mark else mshrs[0])
        if free > start:
            if mark:
                return -free
            start = free
            self.free[bank] = start + t.l2_interval
        elif mshrs[0] > start:
            least = mshrs.index(min(mshrs))
            mshrs[0], mshrs[least] = mshrs[least], mshrs[0]
        self.counters["l2_reads"] += 1
        self.counters["l2_misses"] += 1
        self._evict(way, start)
        way.line, way.dirty = line, False
        way.ready = self.below.read(start + t.l2_miss, address, mark)
        mshrs.append(way.ready)
        tags.touch(way)
        return way.ready

    def write(self, now: int, address: int) -> int:
        """Write a full line, without a fetch."""
        t, line = self.timing, address // LINE
        bank, index, start = self._accept(now, address)
        tags = self.banks[bank]
        self.counters["l2_writes"] += 1
        way = tags.find(index, line)
        if way is None:
            way = tags.oldest(index)
            start = max(start, way.ready)
            self._evict(way, start)
            way.line = line
        way.dirty, way.ready = True, max(way.ready, start)
        tags.touch(way)
        return start + t.l2_write

    def _evict(self, way: Way, now: int) -> None:
        if way.dirty:
            self.counters["l2_write_backs"] += 1
            self.below.write(now, way.line * LINE)
