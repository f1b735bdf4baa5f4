"""The reference implementation of the GPU above its L2 cache in plain Python, one class per component.

All times are ticks. A component is reserved only by an event at that time, and the order of events, (cycle, scheduling
order), determines the state that a request encounters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.counters import NAMES
from lamina.simulate.hierarchy.program import END, LDS, SKIPPED, STORE, VALU, WAIT, Phase, Program
from lamina.simulate.hierarchy.reference_memory import L2, NEVER, Below, Tags
from lamina.simulate.hierarchy.timing import FRACTION, HORIZON, SLACK, TICKS, Timing


@dataclass(eq=False)
class Request:
    """The lines of one load or store of one wavefront."""

    wave: Wavefront
    addresses: list[int]
    store: bool
    mark: int
    requested: set[int] = field(default_factory=set)  # indices of lines whose translation was requested
    pending: list[int] = field(default_factory=list)  # indices in ``addresses`` not yet at L1
    done: int = NEVER


@dataclass(eq=False)
class Wavefront:
    """A wavefront in its slot of a compute unit."""

    cu: int
    simd: int
    workgroup: int = -1
    pc: int = 0
    trips: int = 0
    outstanding: int = 0
    release: int = 0
    waiting: bool = False
    work: int = 0  # remaining ticks of vector instructions, if alone on the SIMD
    running: bool = False
    scheduled: int = 0  # the sequence number of its event; 0: none


@dataclass
class Simd:
    """Issues vector instructions of the oldest wavefronts that have some."""

    waves: list[Wavefront] = field(default_factory=list)
    updated: int = 0
    running: int = 0


class Machine:
    """The whole GPU running one program."""

    def __init__(self, program: Program, timing: Timing, slots: int, below: Below, workgroups: int):
        self.timing, self.workgroups = timing, workgroups
        self.phases: Sequence[Phase] = (*program.before, *program.loop, *program.after)
        self.loop, self.tail = len(program.before), len(program.before) + len(program.loop)
        self.program = program
        self.counters = dict.fromkeys(NAMES, 0)
        self.now_cycle = self.order = 0
        self.events: list[tuple[int, int, int, Wavefront | Request | int]] = []
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
        self.l2 = L2(timing, below, self.counters)
        self.finished = [NEVER] * workgroups
        self.next_workgroup = self.ended = 0
        self._load_image()
        self.waves = [Wavefront(i % t.cus, i // t.cus % t.simds) for i in range(t.cus * slots)]
        for wave in self.waves:
            self.simds[wave.cu][wave.simd].waves.append(wave)
        for i, wave in enumerate(self.waves[:workgroups]):
            self._start(wave, i * t.dispatch)

    def run(self, until: int) -> None:
        """Run until the given number of workgroups has finished."""
        while self.events and self.ended < until:
            cycle, order, when, what = heappop(self.events)
            if isinstance(what, Wavefront):
                if what.scheduled != order:
                    continue
                what.scheduled = 0
            self.now_cycle = cycle
            if when // TICKS > cycle:
                self._schedule(what, when)
                continue
            self.counters["events"] += 1
            if isinstance(what, Wavefront):
                self._step(what, when)
            elif isinstance(what, Request):
                self._arrive(what, when)
            else:
                self._serve_queue(what, when)

    def _schedule(self, what: Wavefront | Request | int, when: int) -> None:
        """Schedule a wavefront, a request whose pages have arrived, or the L1 cache of a compute unit.

        A wavefront has one event; a new one replaces the old one.
        """
        cycle = min(max(when // TICKS, self.now_cycle), self.now_cycle + HORIZON - 1)
        self.order += 1
        if isinstance(what, Wavefront):
            what.scheduled = self.order
        heappush(self.events, (cycle, self.order, when, what))

    def _load_image(self) -> None:
        """Read code and arguments through L2 as part of the launch: counted, not timed."""
        for address in self.program.image:
            if self.timing.translate:
                self._walk_if_new(address >> self.timing.page_shift, NEVER)
            self.l2.read(NEVER, address, 0)
        self.l2.start()

    def _start(self, wave: Wavefront, when: int) -> None:
        wave.workgroup, wave.pc = self.next_workgroup, 0
        wave.trips = int(self.program.trips[wave.workgroup])
        wave.release = 0
        self.next_workgroup += 1
        self._schedule(wave, when)

    def _step(self, wave: Wavefront, now: int) -> None:
        """Execute the next phase of a wavefront; vector instructions end when the SIMD has finished them."""
        if wave.work:
            wave.work, wave.running = 0, False
            self._update_simd(self.simds[wave.cu][wave.simd], now)
            self._leave(wave, self.phases[wave.pc], now)
            return
        if wave.pc == self.loop and wave.trips == 0:
            wave.pc = self.tail
        phase, t = self.phases[wave.pc], self.timing
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
            self._update_simd(self.simds[wave.cu][wave.simd], now)
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

    def _leave(self, wave: Wavefront, phase: Phase, after: int) -> None:
        """Continue with the next phase after the scalar instructions at the end of this one."""
        wave.pc += 1
        if wave.pc == self.tail:
            wave.trips -= 1
            wave.pc = self.loop if wave.trips > 0 else self.tail
        self._schedule(wave, after + phase.scalar * self.timing.scalar)

    def _update_simd(self, simd: Simd, now: int) -> None:
        """Update a SIMD after a wavefront joined or left: the oldest wavefronts run, as many as saturate it."""
        t = self.timing
        elapsed = max(0, now - simd.updated)
        simd.updated = max(now, simd.updated)
        saturated = simd.running == t.concurrent
        done = elapsed * t.valu_rate >> FRACTION if saturated else elapsed
        ready = []
        for wave in simd.waves:
            if wave.work:
                if wave.running:
                    wave.work = max(1, wave.work - done)
                ready.append(wave)
        chosen = sorted(ready, key=lambda wave: wave.workgroup)[: t.concurrent]
        simd.running = len(chosen)
        for wave in ready:
            ran, wave.running = wave.running, wave in chosen
            if not wave.running:
                wave.scheduled = 0
            elif not ran or saturated != (simd.running == t.concurrent):
                left = wave.work * t.valu_pace >> FRACTION if simd.running == t.concurrent else wave.work
                self._schedule(wave, simd.updated + left)

    def _request(self, wave: Wavefront, phase: Phase, now: int) -> None:
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

    def _gather(self, wave: Wavefront, phase: Phase, trip: int) -> list[int]:
        """The data-dependent offsets of the runs of a phase, in pitches, without skipped runs."""
        program = self.program
        indices = program.indices[int(program.gathers[wave.workgroup]) + trip]
        return [int(index) for index in indices[phase.gather : phase.gather + phase.rows] if index != SKIPPED]

    def _arrive(self, request: Request, now: int) -> None:
        """A request reaches the L1 cache and is queued there."""
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
        """Pass a request's lines through L1 until one stalls; returns the tick of the retry, or 0.

        Lines whose page walk is pending are deferred; the others overtake them.
        """
        cu, wake = request.wave.cu, 0
        left: list[int] = []
        for n, index in enumerate(request.pending):
            address = request.addresses[index]
            while True:
                start = max(now, self.l1_free[cu])
                if start - now > SLACK:
                    request.pending = left + request.pending[n:]
                    return start
                delay = self._translate(request, index, start)
                if delay < 0:
                    left.append(index)
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

    def _translate(self, request: Request, index: int, now: int) -> int:
        """Ticks until a line's translation is available, or minus the tick at which its page walk ends."""
        t, cu = self.timing, request.wave.cu
        if not t.translate:
            return 0
        page = request.addresses[index] >> t.page_shift
        if index in request.requested:
            return 0 if self.page_ready[page] <= now else -self.page_ready[page]
        request.requested.add(index)
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
        """The tick at which a line is available; (0, tick of the retry) if its way is locked."""
        t, cu, line = self.timing, request.wave.cu, address // LINE
        if request.store:
            self.l1_free[cu] = now + t.l1_interval
            return self.l2.write(now + delay, address) + t.l1_write, 0
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
            done = self.l2.read(now + delay, address, request.mark)
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

    def _complete(self, request: Request, now: int) -> None:
        """Complete a request whose lines all have a tick; requests of a compute unit may have to return in order."""
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

    def _release(self, wave: Wavefront, when: int, now: int) -> None:
        wave.outstanding -= 1
        wave.release = max(wave.release, when)
        if wave.waiting and not wave.outstanding:
            wave.waiting = False
            self._schedule(wave, max(now, wave.release))
