"""The definition: the memory hierarchy in plain Python, one object for each part of the machine.

Every time is a tick. A part is reserved only by an event that happens then, and what a request finds there is
decided by the order of events: (cycle, order of scheduling).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.counters import NAMES
from lamina.simulate.hierarchy.program import END, LDS, NOWHERE, STORE, VALU, WAIT, Phase, Program
from lamina.simulate.hierarchy.timing import FRACTION, HORIZON, SLACK, TICKS, DramTiming, Timing

NEVER = -(2**60)
"""The time of what has not happened."""


class Below(Protocol):
    """What lies below L2: the seam where a unit between L2 and memory goes."""

    def read(self, now: int, address: int, mark: int) -> int:
        """When the line at ``address`` is back at L2."""

    def write(self, now: int, address: int) -> None:
        """Take a line written back."""


class Dram:
    """Memory channels: a latency and a rate, or banks with open rows and limits on activations."""

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
        """When the column command can go to a bank, its row opened first if it is not."""
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
    """One place of a cache: the line there, when its data came or comes, when it was last asked for."""

    line: int = -1
    ready: int = NEVER
    used: int = 0
    dirty: bool = False


class Tags:
    """Sets of ways, the least recently used of which makes room."""

    def __init__(self, sets: int, ways: int):
        self.count = sets
        self.sets: defaultdict[int, list[Way]] = defaultdict(lambda: [Way() for _ in range(ways)])
        self.clock = 0

    def find(self, index: int, line: int) -> Way | None:
        return next((way for way in self.sets[index % self.count] if way.line == line), None)

    def oldest(self, index: int, unlocked: int | None = None) -> Way:
        """The way to make room in: the least recently used whose data came by ``unlocked``, else the first to be."""
        ways = self.sets[index % self.count]
        free = [way for way in ways if unlocked is None or way.ready <= unlocked]
        return min(free, key=lambda way: way.used) if free else min(ways, key=lambda way: way.ready)

    def touch(self, way: Way) -> None:
        self.clock += 1
        way.used = self.clock


@dataclass(eq=False)
class Request:
    """The lines of one load or store of one wave."""

    wave: Wave
    addresses: list[int]
    store: bool
    mark: int
    asked: set[int] = field(default_factory=set)  # places whose translation was asked for
    pending: list[int] = field(default_factory=list)  # places in ``addresses`` not yet at L1
    done: int = NEVER


@dataclass(eq=False)
class Wave:
    """A wave in its slot of a compute unit."""

    cu: int
    simd: int
    workgroup: int = -1
    place: int = 0
    trips: int = 0
    outstanding: int = 0
    release: int = 0
    waiting: bool = False
    work: int = 0  # ticks of vector instructions left, if it had the SIMD to itself
    running: bool = False
    scheduled: int = 0  # the order number of its event; 0 is none


@dataclass
class Simd:
    """Issues vector instructions of the oldest waves that have some."""

    waves: list[Wave] = field(default_factory=list)
    updated: int = 0
    running: int = 0


class Machine:
    """The whole GPU running one program."""

    def __init__(self, program: Program, timing: Timing, slots: int, below: Below, workgroups: int):
        self.timing, self.below, self.workgroups = timing, below, workgroups
        self.phases: Sequence[Phase] = (*program.before, *program.loop, *program.after)
        self.loop, self.tail = len(program.before), len(program.before) + len(program.loop)
        self.program = program
        self.counters = dict.fromkeys(NAMES, 0)
        self.now_cycle = self.order = 0
        self.events: list[tuple[int, int, int, Wave | Request | int]] = []
        t = timing
        self.simds = [[Simd() for _ in range(t.simds)] for _ in range(t.cus)]
        self.lds_free = [0] * t.cus
        self.l1_free = [0] * t.cus
        self.l1_queue: list[deque[Request]] = [deque() for _ in range(t.cus)]
        self.returning: list[deque[Request]] = [deque() for _ in range(t.cus)]
        self.returned = [0] * t.cus
        self.l1 = [Tags(t.l1_sets, t.l1_ways) for _ in range(t.cus)]
        self.l1_mshrs = [deque([NEVER] * t.l1_mshrs, maxlen=t.l1_mshrs) for _ in range(t.cus)]
        self.tlb1 = [Tags(t.tlb1_sets, t.tlb1_ways) for _ in range(t.cus)]
        self.tlb2 = Tags(t.tlb2_sets, t.tlb2_ways)
        self.page_ready: dict[int, int] = {}
        self.walkers = deque([NEVER] * t.walkers, maxlen=t.walkers)
        self.l2 = [Tags(t.l2_sets, t.l2_ways) for _ in range(t.l2_banks)]
        self.l2_free = [0] * t.l2_banks
        self.l2_mshrs = [deque([NEVER] * t.l2_mshrs, maxlen=t.l2_mshrs) for _ in range(t.l2_banks)]
        self.finished = [NEVER] * workgroups
        self.next_workgroup = self.ended = 0
        self._load_image()
        self.waves = [Wave(i % t.cus, i // t.cus % t.simds) for i in range(t.cus * slots)]
        for wave in self.waves:
            self.simds[wave.cu][wave.simd].waves.append(wave)
        for i, wave in enumerate(self.waves[:workgroups]):
            self._start(wave, i * t.dispatch)

    def run(self, until: int) -> None:
        """Run until so many workgroups have finished."""
        while self.events and self.ended < until:
            cycle, order, when, what = heappop(self.events)
            if isinstance(what, Wave):
                if what.scheduled != order:
                    continue
                what.scheduled = 0
            self.now_cycle = cycle
            if when // TICKS > cycle:
                self._schedule(what, when)
                continue
            self.counters["events"] += 1
            if isinstance(what, Wave):
                self._step(what, when)
            elif isinstance(what, Request):
                self._arrive(what, when)
            else:
                self._serve_queue(what, when)

    def _schedule(self, what: Wave | Request | int, when: int) -> None:
        """An event of a wave, a request whose pages have come, or the L1 cache of a compute unit.

        A wave has one event; a new one takes the place of the old.
        """
        cycle = min(max(when // TICKS, self.now_cycle), self.now_cycle + HORIZON - 1)
        self.order += 1
        if isinstance(what, Wave):
            what.scheduled = self.order
        heappush(self.events, (cycle, self.order, when, what))

    def _load_image(self) -> None:
        """Code and arguments pass through L2 as part of the launch: counted, not timed."""
        for address in self.program.image:
            if self.timing.translate:
                self._walk_if_new(address >> self.timing.page_shift, NEVER)
            self._read_l2(NEVER, address, 0)
        self.l2_free = [0] * self.timing.l2_banks

    def _start(self, wave: Wave, when: int) -> None:
        wave.workgroup, wave.place = self.next_workgroup, 0
        wave.trips = int(self.program.trips[wave.workgroup])
        wave.release = 0
        self.next_workgroup += 1
        self._schedule(wave, when)

    def _step(self, wave: Wave, now: int) -> None:
        """The next phase of a wave; vector instructions end when the SIMD has done them."""
        if wave.work:
            wave.work, wave.running = 0, False
            self._share(self.simds[wave.cu][wave.simd], now)
            self._leave(wave, self.phases[wave.place], now)
            return
        if wave.place == self.loop and wave.trips == 0:
            wave.place = self.tail
        phase, t = self.phases[wave.place], self.timing
        if phase.kind == WAIT and wave.outstanding:
            wave.waiting = True
            return
        if phase.kind == END:
            self.finished[wave.workgroup] = now
            self.ended += 1
            if self.next_workgroup < self.workgroups:
                self._start(wave, now + t.dispatch)
            return
        after = now
        if phase.kind == VALU and phase.count:
            wave.work = phase.count * t.valu
            self.counters["valu_ticks"] += phase.count * t.valu_busy
            self._share(self.simds[wave.cu][wave.simd], now)
            return
        elif phase.kind == LDS:
            start = max(now, self.lds_free[wave.cu])
            self.lds_free[wave.cu] = start + phase.count * t.lds_busy
            after = start + phase.count * t.lds
            self.counters["lds_ticks"] += phase.count * t.lds_busy
        elif phase.kind == WAIT:
            after = max(now, wave.release)
        elif phase.kind != VALU:
            self._request(wave, phase, now)
            after = now + t.vmem_issue
        self._leave(wave, phase, after)

    def _leave(self, wave: Wave, phase: Phase, after: int) -> None:
        """Go on to the next phase when the scalar instructions that end this one are done."""
        wave.place += 1
        if wave.place == self.tail:
            wave.trips -= 1
            wave.place = self.loop if wave.trips > 0 else self.tail
        self._schedule(wave, after + phase.scalar * self.timing.scalar)

    def _share(self, simd: Simd, now: int) -> None:
        """A wave came to a SIMD or left it: the oldest waves, as many as keep it busy, run side by side."""
        t = self.timing
        elapsed = max(0, now - simd.updated)
        simd.updated = max(now, simd.updated)
        crowded = simd.running == t.abreast
        done = elapsed * t.valu_rate >> FRACTION if crowded else elapsed
        ready = []
        for wave in simd.waves:
            if wave.work:
                if wave.running:
                    wave.work = max(1, wave.work - done)
                ready.append(wave)
        chosen = sorted(ready, key=lambda wave: wave.workgroup)[: t.abreast]
        simd.running = len(chosen)
        for wave in ready:
            ran, wave.running = wave.running, wave in chosen
            if not wave.running:
                wave.scheduled = 0
            elif not ran or crowded != (simd.running == t.abreast):
                left = wave.work * t.valu_pace >> FRACTION if simd.running == t.abreast else wave.work
                self._schedule(wave, simd.updated + left)

    def _request(self, wave: Wave, phase: Phase, now: int) -> None:
        row, column = divmod(wave.workgroup, self.program.columns)
        trip = int(self.program.trips[wave.workgroup]) - wave.trips
        first = phase.base + row * phase.per_row + column * phase.per_column + trip * phase.per_trip
        runs = self._gather(wave, phase, trip) if phase.gather >= 0 else range(phase.rows)
        addresses = [first + run * phase.pitch + line * LINE for run in runs for line in range(phase.lines)]
        request = Request(wave, addresses, phase.kind == STORE, phase.mark)
        request.pending = list(range(len(addresses)))
        self.counters["l1_writes" if request.store else "l1_reads"] += len(addresses)
        wave.outstanding += 1
        if self.timing.in_order:
            self.returning[wave.cu].append(request)
        self._arrive(request, now)

    def _gather(self, wave: Wave, phase: Phase, trip: int) -> list[int]:
        """Where the runs of a phase lie that depend on data, in pitches; those that lie nowhere left out."""
        program = self.program
        indices = program.indices[int(program.gathers[wave.workgroup]) + trip]
        return [int(index) for index in indices[phase.gather : phase.gather + phase.rows] if index != NOWHERE]

    def _arrive(self, request: Request, now: int) -> None:
        """A request reaches the L1 cache, behind those that wait there."""
        queue = self.l1_queue[request.wave.cu]
        queue.append(request)
        if len(queue) == 1:
            self._serve_queue(request.wave.cu, now)

    def _serve_queue(self, cu: int, now: int) -> None:
        queue = self.l1_queue[cu]
        while queue:
            stalled_until = self._serve(queue[0], now)
            if stalled_until:
                self._schedule(cu, stalled_until)
                return
            queue.popleft()

    def _serve(self, request: Request, now: int) -> int:
        """Pass a request's lines through L1 until one stalls: then the tick at which to try again, else 0.

        Lines whose page is still being walked are left for later; the others pass them.
        """
        cu, wake = request.wave.cu, 0
        left: list[int] = []
        for n, place in enumerate(request.pending):
            address = request.addresses[place]
            while True:
                start = max(now, self.l1_free[cu])
                if start - now > SLACK:
                    request.pending = left + request.pending[n:]
                    return start
                delay = self._translate(request, place, start)
                if delay < 0:
                    left.append(place)
                    wake = min(wake, -delay) if wake else -delay
                    break
                done, locked_until = self._access_l1(request, address, start, delay)
                if not locked_until:
                    request.done = max(request.done, done)
                    break
                self.counters["l1_stall_ticks"] += locked_until - start
                self.l1_free[cu] = locked_until
        request.pending = left
        if left:
            self._schedule(request, wake)
        else:
            self._complete(request, now)
        return 0

    def _translate(self, request: Request, place: int, now: int) -> int:
        """Ticks until a line's translation is there, or minus the tick at which its page walk ends."""
        t, cu = self.timing, request.wave.cu
        if not t.translate:
            return 0
        page = request.addresses[place] >> t.page_shift
        if place in request.asked:
            return 0 if self.page_ready[page] <= now else -self.page_ready[page]
        request.asked.add(place)
        entry = self.tlb1[cu].find(page, page)
        if entry is None:
            self.counters["tlb1_misses"] += 1
            self._walk_if_new(page, now + t.tlb2_hit)
            entry = self.tlb1[cu].oldest(page)
            entry.line = page
            self.tlb1[cu].touch(entry)
            delay = t.tlb2_hit
        else:
            self.tlb1[cu].touch(entry)
            delay = 0
        ready = self.page_ready[page]
        if ready <= now + delay:
            return delay
        self.l1_free[cu] = now + t.l1_interval
        return -ready

    def _walk_if_new(self, page: int, now: int) -> None:
        entry = self.tlb2.find(page, page)
        if entry is None:
            self.counters["page_walks"] += 1
            t = self.timing
            start = max(now, self.walkers[0])
            self.walkers.append(start + t.walk)
            self.page_ready[page] = start + t.walk + t.walk_distance
            entry = self.tlb2.oldest(page)
            entry.line = page
        self.tlb2.touch(entry)

    def _access_l1(self, request: Request, address: int, now: int, delay: int) -> tuple[int, int]:
        """When a line is there, or, if its place in the cache is locked, (0, until when)."""
        t, cu, line = self.timing, request.wave.cu, address // LINE
        if request.store:
            self.l1_free[cu] = now + t.l1_interval
            return self._write_l2(now + delay, address) + t.l1_write, 0
        way = self.l1[cu].find(line, line)
        if way is not None:
            if way.ready <= now < way.ready + t.l1_fill:
                return 0, way.ready + t.l1_fill
            if way.ready <= now:
                self.counters["l1_hits"] += 1
                self.l1[cu].touch(way)
                done = now + delay + t.l1_hit
            else:
                self.counters["l1_mshr_hits"] += 1
                done = max(way.ready, now + delay)
        else:
            way, mshrs = self.l1[cu].oldest(line, now - t.l1_fill), self.l1_mshrs[cu]
            free = max(way.ready + t.l1_fill, mshrs[0])
            if free > now:
                return 0, free
            done = self._read_l2(now + delay, address, request.mark)
            if done < 0:
                return 0, -done - delay
            self.counters["l1_misses"] += 1
            done += t.l1_to_l2
            mshrs.append(done)
            way.line, way.ready = line, done
            self.l1[cu].touch(way)
        self.l1_free[cu] = now + t.l1_interval
        self.counters["l1_latency_ticks"] += done - now
        return done, 0

    def _bank(self, now: int, address: int) -> tuple[int, int, int]:
        """The L2 bank of an address, the set there, and when the bank takes the request."""
        t = self.timing
        row, bank = divmod(address >> t.l2_shift, t.l2_banks)
        index = ((row << t.l2_shift) + address % (1 << t.l2_shift)) // LINE
        start = max(now, self.l2_free[bank])
        self.l2_free[bank] = start + t.l2_interval
        return bank, index, start

    def _read_l2(self, now: int, address: int, mark: int) -> int:
        """When a line is there. A marked read for which there is no room is not taken: minus when there will be.

        Other reads wait for room in the bank, whose MSHRs come free in their order, and reserve what lies below from
        then on. A unit there that serves several banks cannot be reserved so: whoever came earlier would have to wait
        behind; and its times differ so much that the order of MSHRs would hold back what they have room for.
        """
        t, line = self.timing, address // LINE
        bank, index, start = self._bank(now, address)
        tags = self.l2[bank]
        way = tags.find(index, line)
        if way is not None:
            self.counters["l2_reads"] += 1
            tags.touch(way)
            self.counters["l2_mshr_hits" if way.ready > start else "l2_hits"] += 1
            return way.ready if way.ready > start else start + t.l2_hit
        way, mshrs = tags.oldest(index), self.l2_mshrs[bank]
        free = max(way.ready, min(mshrs) if mark else mshrs[0])
        if free > start:
            if mark:
                return -free
            start = free
            self.l2_free[bank] = start + t.l2_interval
        elif mshrs[0] > start:
            least = mshrs.index(min(mshrs))
            mshrs[0], mshrs[least] = mshrs[least], mshrs[0]
        self.counters["l2_reads"] += 1
        self.counters["l2_misses"] += 1
        self._make_room(way, start)
        way.line, way.dirty = line, False
        way.ready = self.below.read(start + t.l2_miss, address, mark)
        mshrs.append(way.ready)
        tags.touch(way)
        return way.ready

    def _write_l2(self, now: int, address: int) -> int:
        """Full lines are written without a fetch."""
        t, line = self.timing, address // LINE
        bank, index, start = self._bank(now, address)
        tags = self.l2[bank]
        self.counters["l2_writes"] += 1
        way = tags.find(index, line)
        if way is None:
            way = tags.oldest(index)
            start = max(start, way.ready)
            self._make_room(way, start)
            way.line = line
        way.dirty, way.ready = True, max(way.ready, start)
        tags.touch(way)
        return start + t.l2_write

    def _make_room(self, way: Way, now: int) -> None:
        if way.dirty:
            self.counters["l2_write_backs"] += 1
            self.below.write(now, way.line * LINE)

    def _complete(self, request: Request, now: int) -> None:
        """All lines of a request have a time; requests of a compute unit may have to return in their order."""
        request.done += self.timing.vmem_path
        cu = request.wave.cu
        if not self.timing.in_order:
            self._release(request.wave, request.done, now)
            return
        queue = self.returning[cu]
        while queue and not queue[0].pending:
            first = queue.popleft()
            self.returned[cu] = max(self.returned[cu], first.done)
            self._release(first.wave, self.returned[cu], now)

    def _release(self, wave: Wave, when: int, now: int) -> None:
        wave.outstanding -= 1
        wave.release = max(wave.release, when)
        if wave.waiting and not wave.outstanding:
            wave.waiting = False
            self._schedule(wave, max(now, wave.release))
