"""Compiled wavefronts and compute units: execution of programs, and their memory requests."""

from typing import no_type_check

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.core.below import fixed
from lamina.simulate.hierarchy.core.caches import access_l1, translate
from lamina.simulate.hierarchy.core.ring import schedule, unschedule, wrapped
from lamina.simulate.hierarchy.counters import L1_READS, L1_STALL, L1_WRITES, LDS_TICKS, VALU_TICKS
from lamina.simulate.hierarchy.program import (
    BASE,
    COLUMNS,
    COUNT,
    END,
    GATHER,
    KIND,
    LDS,
    LINES,
    PER_COLUMN,
    PER_ROW,
    PER_TRIP,
    PITCH,
    ROWS,
    SCALAR,
    SKIPPED,
    STORE,
    VALU,
    WAIT,
)
from lamina.simulate.hierarchy.state import (
    C_COUNT,
    C_HEAD,
    C_L1,
    C_LDS,
    C_RETURN_COUNT,
    C_RETURN_HEAD,
    C_RETURNED,
    CU,
    NEVER,
    O_COUNTERS,
    O_CUS,
    O_FINISHED,
    O_GATHERS,
    O_INDICES,
    O_QUEUES,
    O_REQUESTS,
    O_RETURNS,
    O_SIMDS,
    O_TABLE,
    O_TRIPS,
    O_WAVES,
    P_CONCURRENT,
    P_CUS,
    P_DISPATCH,
    P_IN_ORDER,
    P_LDS,
    P_LDS_BUSY,
    P_PAGE_SHIFT,
    P_SCALAR,
    P_SIMDS,
    P_TRANSLATE,
    P_VALU,
    P_VALU_BUSY,
    P_VALU_PACE,
    P_VALU_RATE,
    P_VMEM_ISSUE,
    P_VMEM_PATH,
    Q_DONE,
    Q_FIRST,
    Q_INDEX,
    Q_PENDING,
    Q_PHASE,
    Q_REQUESTED,
    Q_STORE,
    Q_WAVE,
    REQUEST,
    S_COLUMNS,
    S_EACH,
    S_FINISHED,
    S_INDICES,
    S_LOOP,
    S_NEXT,
    S_PER_SIMD,
    S_RING,
    S_TAIL,
    S_WAVES,
    S_WORKGROUPS,
    U_RUN,
    U_UPDATED,
    U_WORK,
    W_COLUMN,
    W_CU,
    W_GROUP,
    W_ISSUED,
    W_OUT,
    W_PC,
    W_RELEASE,
    W_ROW,
    W_SIMD,
    W_TRIPS,
    W_WAITING,
    W_WORK,
    WAVE,
)
from lamina.simulate.hierarchy.timing import FRACTION, SLACK


@compiled()
@no_type_check
def start_wave(x, wave, when):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_GROUP] = x[x[w + W_WORK] + 2 * fixed(x, S_PER_SIMD)] = x[S_NEXT]
    x[w + W_PC] = 0
    x[w + W_TRIPS] = x[fixed(x, O_TRIPS) + x[S_NEXT]]
    x[w + W_RELEASE] = 0
    x[w + W_ROW] = x[S_NEXT] // fixed(x, S_COLUMNS)
    x[w + W_COLUMN] = x[S_NEXT] % fixed(x, S_COLUMNS)
    x[S_NEXT] += 1
    schedule(x, wave, when)


@compiled()
@no_type_check
def _release(x, wave, when, now):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_OUT] -= 1
    x[w + W_RELEASE] = max(x[w + W_RELEASE], when)
    if x[w + W_WAITING] and not x[w + W_OUT]:
        x[w + W_WAITING] = 0
        schedule(x, wave, max(now, x[w + W_RELEASE]))


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
        x[c + C_RETURN_HEAD] = wrapped(x[c + C_RETURN_HEAD] + 1, size)
        x[c + C_RETURN_COUNT] -= 1
        x[c + C_RETURNED] = max(x[c + C_RETURNED], x[q + Q_DONE])
        _release(x, x[q + Q_WAVE], x[c + C_RETURNED], now)


@compiled(forceinline=True)
@no_type_check
def _index(x, position):
    return x[fixed(x, O_INDICES) + (position >> 2)] >> ((position & 3) << 4) & SKIPPED


@compiled()
@no_type_check
def _gather(x, q, phase):
    """Mask out the skipped runs; returns the number of remaining lines."""
    lines, pending, run = 0, 0, (1 << x[phase + LINES]) - 1
    for row in range(x[phase + ROWS]):
        if _index(x, x[q + Q_INDEX] + row) != SKIPPED:
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
    left = wake = bit = column = 0
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
            bit += 1
            column += 1
            continue
        address = run + column * LINE
        start = max(now, x[c + C_L1])
        if start - now > SLACK:
            x[q + Q_PENDING] = left | pending << bit
            return start
        delay = 0
        if fixed(x, P_TRANSLATE):
            delay = translate(x, c, cu, q, 1 << bit, address >> fixed(x, P_PAGE_SHIFT), start)
        if delay < 0:
            left |= 1 << bit
            wake = min(wake, -delay) if wake else -delay
        else:
            done, locked_until = access_l1(x, below, m, c, cu, q, address, start, delay)
            if locked_until:
                x[fixed(x, O_COUNTERS) + L1_STALL] += locked_until - start
                x[c + C_L1] = locked_until
                continue
            x[q + Q_DONE] = max(x[q + Q_DONE], done)
        pending >>= 1
        bit += 1
        column += 1
    x[q + Q_PENDING] = left
    if left:
        schedule(x, fixed(x, S_WAVES) + fixed(x, P_CUS) + request, wake)
    else:
        _complete(x, cu, request, now)
    return 0


@compiled()
@no_type_check
def serve_queue(x, below, m, cu, now):
    c = fixed(x, O_CUS) + cu * CU
    size = fixed(x, S_RING)
    ring = fixed(x, O_QUEUES) + cu * size
    while x[c + C_COUNT]:
        stalled_until = _serve(x, below, m, cu, x[ring + x[c + C_HEAD]], now)
        if stalled_until:
            schedule(x, fixed(x, S_WAVES) + cu, stalled_until)
            return
        x[c + C_HEAD] = wrapped(x[c + C_HEAD] + 1, size)
        x[c + C_COUNT] -= 1


@compiled(forceinline=True)
@no_type_check
def arrive(x, below, m, cu, request, now):
    c = fixed(x, O_CUS) + cu * CU
    size = fixed(x, S_RING)
    x[fixed(x, O_QUEUES) + cu * size + wrapped(x[c + C_HEAD] + x[c + C_COUNT], size)] = request
    x[c + C_COUNT] += 1
    if x[c + C_COUNT] == 1:
        serve_queue(x, below, m, cu, now)


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
    x[q + Q_REQUESTED] = 0
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
        slot = wrapped(x[c + C_RETURN_HEAD] + x[c + C_RETURN_COUNT], fixed(x, S_RING))
        x[fixed(x, O_RETURNS) + cu * fixed(x, S_RING) + slot] = request
        x[c + C_RETURN_COUNT] += 1
    arrive(x, below, m, cu, request, now)


@compiled()
@no_type_check
def _update_simd(x, cu, simd, now):
    """Run the oldest wavefronts of a SIMD, as many as saturate it; ``_update_simd`` of the reference."""
    concurrent, count = fixed(x, P_CONCURRENT), fixed(x, S_PER_SIMD)
    first = cu * fixed(x, P_SIMDS) + simd
    u = fixed(x, O_SIMDS) + first * (U_WORK + 3 * count)
    first *= count
    works = u + U_WORK
    runs = works + count
    groups = runs + count
    saturated = x[u + U_RUN] == concurrent
    done = max(0, now - x[u + U_UPDATED])
    if saturated:
        done = done * fixed(x, P_VALU_RATE) >> FRACTION
    updated = max(now, x[u + U_UPDATED])
    x[u + U_UPDATED] = updated
    ready = 0
    for i in range(count):
        work, running = x[works + i], x[runs + i]
        ready += work > 0
        x[works + i] = max(running, work - done * running)
    run = min(ready, concurrent)
    x[u + U_RUN] = run
    if not ready:
        return
    changed = saturated != (run == concurrent)
    for i in range(count):
        work = x[works + i]
        if not work:
            continue
        older = 0
        if ready > concurrent:
            group = x[groups + i]
            for other in range(count):
                older += (x[works + other] > 0) & (x[groups + other] < group)
        if older >= concurrent:
            if x[runs + i]:
                x[runs + i] = 0
                unschedule(x, first + i)
        elif changed or not x[runs + i]:
            x[runs + i] = 1
            left = work * fixed(x, P_VALU_PACE) >> FRACTION if run == concurrent else work
            unschedule(x, first + i)
            schedule(x, first + i, updated + left)


@compiled(forceinline=True)
@no_type_check
def _leave(x, wave, phase, after):
    w = fixed(x, O_WAVES) + wave * WAVE
    x[w + W_PC] += 1
    if x[w + W_PC] == fixed(x, S_TAIL):
        x[w + W_TRIPS] -= 1
        if x[w + W_TRIPS] > 0:
            x[w + W_PC] = fixed(x, S_LOOP)
    schedule(x, wave, after + x[phase + SCALAR] * fixed(x, P_SCALAR))


@compiled()
@no_type_check
def step_wave(x, below, m, wave, now):
    w = fixed(x, O_WAVES) + wave * WAVE
    if x[w + W_PC] == fixed(x, S_LOOP) and x[w + W_TRIPS] == 0:
        x[w + W_PC] = fixed(x, S_TAIL)
    phase = fixed(x, O_TABLE) + x[w + W_PC] * COLUMNS
    work = x[w + W_WORK]
    if x[work]:
        x[work] = x[work + fixed(x, S_PER_SIMD)] = 0
        _update_simd(x, x[w + W_CU], x[w + W_SIMD], now)
        _leave(x, wave, phase, now)
        return
    kind, counters = x[phase + KIND], fixed(x, O_COUNTERS)
    if kind == VALU and x[phase + COUNT]:
        x[work] = x[phase + COUNT] * fixed(x, P_VALU)
        x[counters + VALU_TICKS] += x[phase + COUNT] * fixed(x, P_VALU_BUSY)
        _update_simd(x, x[w + W_CU], x[w + W_SIMD], now)
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
            start_wave(x, wave, now + fixed(x, P_DISPATCH))
        return
    elif kind != VALU:
        _request(x, below, m, wave, phase, now)
        after = now + fixed(x, P_VMEM_ISSUE)
    _leave(x, wave, phase, after)
