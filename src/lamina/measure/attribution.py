"""Attribution of kernels to named ranges, by correlation id and never by position.

Three tables of plain records, so that it can be tested without a GPU:

    Activity  work on the device       --correlation id-->  Launch  the runtime call that submitted it
    Launch    its time on the host     --falls inside-->    Range   a named interval of host time

The thread of the launch is ignored: autograd launches backward kernels from a thread of its own while the calling
thread waits inside the range.
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

# Launches that always have an activity record; copies of zero bytes, for example, have none.
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel")


@dataclass(frozen=True)
class Range(Generic[K]):
    """An interval of host time under one key, both ends included."""

    key: K
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Launch:
    """A runtime or driver call that may submit work to the device (cudaLaunchKernel, cudaGraphLaunch, ...)."""

    correlation: int
    name: str
    start_ns: int


@dataclass(frozen=True)
class Activity:
    """Work on the device: a kernel, a memcpy or a memset. Only kernels have a grid."""

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

    ranges: Mapping[K, tuple[Activity, ...]]  # every range, empty ones included; in order of device time
    outside: tuple[Activity, ...]  # launched outside of all ranges
    unattributed: tuple[Activity, ...]  # no launch, or launches in several ranges, under that correlation id
    unrecorded: tuple[Launch, ...]  # kernel launches inside a range without an activity record

    @property
    def known_ns(self) -> int:
        """Device time whose launch is known, inside a range or outside."""
        inside = sum(activity.duration_ns for members in self.ranges.values() for activity in members)
        return inside + sum(activity.duration_ns for activity in self.outside)

    @property
    def unattributed_ns(self) -> int:
        """Device time whose launch is unknown."""
        return sum(activity.duration_ns for activity in self.unattributed)


def attribute(ranges: Sequence[Range[K]], launches: Iterable[Launch], activities: Iterable[Activity]) -> Attribution[K]:
    """Assign each activity to the range in which it was launched.

    Ranges must not overlap and their keys must be unique (LaminaError otherwise). One launch may have many
    activities (a CUDA graph); an activity has one launch.
    """
    ordered = sorted(ranges, key=lambda item: item.start_ns)
    for one, other in pairwise(ordered):
        if other.start_ns < one.end_ns:
            raise LaminaError(f"expected disjoint ranges, but {one.key!r} and {other.key!r} overlap")
    members: dict[K, list[Activity]] = {item.key: [] for item in ordered}
    if len(members) != len(ordered):
        raise LaminaError("expected one range per key, got a duplicate key")

    starts = [item.start_ns for item in ordered]
    indices: dict[int, set[int | None]] = defaultdict(set)  # correlation id -> indices of ranges, None: outside
    inside: list[Launch] = []
    for launch in launches:
        index = bisect_right(starts, launch.start_ns) - 1
        within = index >= 0 and launch.start_ns <= ordered[index].end_ns
        indices[launch.correlation].add(index if within else None)
        if within:
            inside.append(launch)

    outside: list[Activity] = []
    unattributed: list[Activity] = []
    recorded: set[int] = set()
    for activity in sorted(activities, key=lambda item: item.start_ns):
        recorded.add(activity.correlation)
        found = indices.get(activity.correlation, set())
        if len(found) != 1:
            unattributed.append(activity)
            continue
        (index_or_none,) = found
        target = outside if index_or_none is None else members[ordered[index_or_none].key]
        target.append(activity)
    unrecorded = tuple(
        launch for launch in inside if launch.correlation not in recorded and _KERNEL_LAUNCH.search(launch.name)
    )
    return Attribution(
        {key: tuple(found) for key, found in members.items()}, tuple(outside), tuple(unattributed), unrecorded
    )
