"""The compiled simulator: the same events in the same order as the reference, over one integer table."""

from typing import no_type_check

from numba import types

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.core.below import BELOW, DRAM_FIELDS, POINTER, dram, fixed
from lamina.simulate.hierarchy.core.caches import read_l2, walk_if_new
from lamina.simulate.hierarchy.core.ring import schedule, unschedule
from lamina.simulate.hierarchy.core.wavefronts import arrive, serve_queue, start_wave, step_wave
from lamina.simulate.hierarchy.counters import EVENTS
from lamina.simulate.hierarchy.state import (
    E_TIME,
    EVENT,
    NEVER,
    O_BANKS,
    O_BUCKETS,
    O_COUNTERS,
    O_EVENTS,
    O_REQUESTS,
    O_WAVES,
    P_CUS,
    P_DISPATCH,
    P_L2_BANKS,
    P_PAGE_SHIFT,
    P_SIMDS,
    P_TRANSLATE,
    Q_WAVE,
    REQUEST,
    S_CYCLE,
    S_FINISHED,
    S_NEXT,
    S_PENDING,
    S_PER_SIMD,
    S_SLOTS,
    S_WAVES,
    S_WORKGROUPS,
    W_CU,
    WAVE,
)
from lamina.simulate.hierarchy.timing import HORIZON, TICK_SHIFT

__all__ = ["BELOW", "DRAM_FIELDS", "advance", "dram"]


@compiled(types.boolean(POINTER, types.FunctionType(BELOW), POINTER, POINTER, types.int64, types.int64), nogil=True)
@no_type_check
def _advance(x, below, m, image, images, until):
    waves, cus = fixed(x, S_WAVES), fixed(x, P_CUS)
    if not x[S_NEXT]:
        for i in range(images):
            if fixed(x, P_TRANSLATE):
                walk_if_new(x, image[i] >> fixed(x, P_PAGE_SHIFT), NEVER)
            read_l2(x, below, m, NEVER, image[i], 0)
        for bank in range(fixed(x, P_L2_BANKS)):
            x[fixed(x, O_BANKS) + 3 * bank] = 0
        for i in range(min(cus * fixed(x, S_SLOTS), fixed(x, S_WORKGROUPS))):
            slot = i // cus
            simd = i % cus * fixed(x, P_SIMDS) + slot % fixed(x, P_SIMDS)
            start_wave(x, simd * fixed(x, S_PER_SIMD) + slot // fixed(x, P_SIMDS), i * fixed(x, P_DISPATCH))
    while x[S_PENDING] and x[S_FINISHED] < until:
        event = x[fixed(x, O_BUCKETS) + 2 * (x[S_CYCLE] & (HORIZON - 1))]
        if event < 0:
            x[S_CYCLE] += 1
            continue
        unschedule(x, event)
        now = x[fixed(x, O_EVENTS) + EVENT * event + E_TIME]
        if now >> TICK_SHIFT > x[S_CYCLE]:
            schedule(x, event, now)
            continue
        x[fixed(x, O_COUNTERS) + EVENTS] += 1
        if event < waves:
            step_wave(x, below, m, event, now)
        elif event < waves + cus:
            serve_queue(x, below, m, event - waves, now)
        else:
            request = event - waves - cus
            cu = x[fixed(x, O_WAVES) + x[fixed(x, O_REQUESTS) + request * REQUEST + Q_WAVE] * WAVE + W_CU]
            arrive(x, below, m, cu, request, now)
    return x[S_PENDING] > 0


@compiled(
    types.boolean(types.int64[::1], types.FunctionType(BELOW), types.int64[::1], types.int64[::1], types.int64),
    nogil=True,
)
@no_type_check
def advance(state, below, memory, image, until):
    """Run until ``until`` workgroups have finished; returns whether events are left. May be called repeatedly.

    The first call loads the ``image`` of code and arguments through L2 and starts the first workgroups.
    """
    return _advance(state.ctypes, below, memory.ctypes, image.ctypes, image.shape[0], until)
