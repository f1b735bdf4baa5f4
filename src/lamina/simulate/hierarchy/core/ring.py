"""Compiled event queue: a ring of cycles, each with a list of events in scheduling order."""

from typing import no_type_check

from lamina.simulate.compiled import compiled
from lamina.simulate.hierarchy.core.below import fixed
from lamina.simulate.hierarchy.state import (
    E_BUCKET,
    E_FOLLOWING,
    E_PREVIOUS,
    E_TIME,
    EVENT,
    FIRST,
    O_BUCKETS,
    O_EVENTS,
    S_CYCLE,
    S_PENDING,
    UNSCHEDULED,
)
from lamina.simulate.hierarchy.timing import HORIZON, TICK_SHIFT


@compiled(forceinline=True)
@no_type_check
def unschedule(x, event):
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
def schedule(x, event, when):
    """Append an unscheduled event to the list of its cycle."""
    cycle = min(max(when >> TICK_SHIFT, x[S_CYCLE]), x[S_CYCLE] + HORIZON - 1)
    slot = cycle & (HORIZON - 1)
    bucket = fixed(x, O_BUCKETS) + 2 * slot
    last = x[bucket + 1]
    e = fixed(x, O_EVENTS) + EVENT * event
    x[e + E_FOLLOWING] = -1
    x[e + E_PREVIOUS] = last
    x[e + E_BUCKET] = slot
    x[e + E_TIME] = when
    x[bucket if last < 0 else fixed(x, O_EVENTS) + EVENT * last + E_FOLLOWING] = event
    x[bucket + 1] = event
    x[S_PENDING] += 1


@compiled(forceinline=True)
@no_type_check
def wrapped(index, size):
    return index - size if index >= size else index
