"""Which piece of work did this kernel belong to? A join by correlation id, never by position.

Three tables of plain records, so that it can be tested without a GPU:

    Activity  what the device did      --correlation id-->  Launch  the host call that asked for it
    Launch    at a moment on the host  --falls inside-->    Range   a named stretch of host time

The thread of the launch plays no part: autograd launches backward kernels from a thread of its own while
the calling thread waits inside the range.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from lamina.errors import LaminaError

K = TypeVar("K", bound=Hashable)

# Launches that the device must answer with a record; copies of zero bytes, for one, are not answered.
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel")


@dataclass(frozen=True)
class Range(Generic[K]):
    """A stretch of host time under one key, both ends included."""

    key: K
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Launch:
    """A runtime or driver call that may put work on the device (cudaLaunchKernel, cudaGraphLaunch, ...)."""

    correlation: int
    name: str
    start_ns: int


@dataclass(frozen=True)
class Activity:
    """Work the device did: a kernel, a copy or a fill. Copies and fills have no grid."""

    correlation: int
    name: str
    start_ns: int
    duration_ns: int
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # per block


@dataclass(frozen=True)
class Attribution(Generic[K]):
    """Every activity exactly once: in a range, outside all ranges, or without a known launch."""

    ranges: Mapping[K, tuple[Activity, ...]]  # every range, also an empty one; in order of device time
    outside: tuple[Activity, ...]  # launched outside of all ranges
    unattributed: tuple[Activity, ...]  # no launch, or launches in different places, under that id
    unanswered: tuple[Launch, ...]  # kernel launches inside a range that no activity answers

    @property
    def known_ns(self) -> int:
        """Device time whose launch is known, inside a range or outside."""
        inside = sum(activity.duration_ns for home in self.ranges.values() for activity in home)
        return inside + sum(activity.duration_ns for activity in self.outside)

    @property
    def lost_ns(self) -> int:
        """Device time of unknown origin."""
        return sum(activity.duration_ns for activity in self.unattributed)


def attribute(ranges: Sequence[Range[K]], launches: Iterable[Launch], activities: Iterable[Activity]) -> Attribution[K]:
    """Bring each activity home to the range inside which it was launched.

    Ranges must not overlap and their keys must differ (LaminaError otherwise). One launch may have many
    activities (a graph), an activity has one launch.
    """
    ordered = sorted(ranges, key=lambda item: item.start_ns)
    for one, other in pairwise(ordered):
        if other.start_ns < one.end_ns:
            raise LaminaError(f"expected ranges apart in time, but {one.key!r} and {other.key!r} overlap")
    homes: dict[K, list[Activity]] = {item.key: [] for item in ordered}
    if len(homes) != len(ordered):
        raise LaminaError("expected one range for each key, got a key twice")

    starts = [item.start_ns for item in ordered]
    places: dict[int, set[int | None]] = defaultdict(set)  # correlation id -> indices of ranges, None outside
    inside: list[Launch] = []
    for launch in launches:
        index = bisect_right(starts, launch.start_ns) - 1
        within = index >= 0 and launch.start_ns <= ordered[index].end_ns
        places[launch.correlation].add(index if within else None)
        if within:
            inside.append(launch)

    outside: list[Activity] = []
    unattributed: list[Activity] = []
    answered: set[int] = set()
    for activity in sorted(activities, key=lambda item: item.start_ns):
        answered.add(activity.correlation)
        place = places.get(activity.correlation, set())
        if len(place) != 1:
            unattributed.append(activity)
            continue
        (index_or_none,) = place
        home = outside if index_or_none is None else homes[ordered[index_or_none].key]
        home.append(activity)
    unanswered = tuple(
        launch for launch in inside if launch.correlation not in answered and _KERNEL_LAUNCH.search(launch.name)
    )
    return Attribution(
        {key: tuple(home) for key, home in homes.items()}, tuple(outside), tuple(unattributed), unanswered
    )
