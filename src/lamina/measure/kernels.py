"""A profiler session: every kernel of a stretch of work, brought home to the named range that launched it."""

from __future__ import annotations

import json
import logging
import re
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, record_function

from lamina.errors import LaminaError, MissingError
from lamina.measure.attribution import Activity, Attribution, Launch, Range, attribute
from lamina.measure.repeat import summarize
from lamina.measure.torch_profiler import torch_profiler
from lamina.record.timing import Timing

_log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)

_PROOF: Any = object()
_RANGE = "lamina:{}"
_RANGE_NAME = re.compile(r"lamina:(\d+)")
_RUNTIME_CALL = re.compile(r"(cuda|cu|hip)[A-Z]\w*")


class KernelSession(Generic[K]):
    """What `record_kernels` hands out: name ranges while it is open, read `attribution` when it has closed."""

    def __init__(self) -> None:
        self._keys: list[K] = []
        self.attribution: Attribution[K] = Attribution({}, (), (), ())

    @contextmanager
    def range(self, key: K) -> Iterator[None]:
        """Everything launched inside belongs to `key`, from whatever thread. Ranges must not overlap."""
        number = len(self._keys)
        self._keys.append(key)
        with record_function(_RANGE.format(number)):
            yield

    def close(self, events: Iterable[Any]) -> None:
        """Join the profiler's events. Errors: MissingError if CUPTI reports no device activity at all."""
        ranges, launches, activities = read_events(events)
        if not activities:
            raise MissingError(
                "expected device activity from CUPTI, got none: another profiler may hold it, or this machine "
                "does not offer it; use the 'events' or 'graph' clock"
            )
        if len(ranges) != len(self._keys):
            raise LaminaError(f"expected {len(self._keys)} ranges in the profiler's trace, got {len(ranges)}")
        named = [Range(self._keys[one.key], one.start_ns, one.end_ns) for one in ranges]
        found = attribute(named, launches, activities)
        homes = {key: home for key, home in found.ranges.items() if key is not _PROOF}
        self.attribution = replace(found, ranges=homes)


@contextmanager
def record_kernels(device: torch.device) -> Iterator[KernelSession[Any]]:
    """Profile the block on a device."""
    session: KernelSession[Any] = KernelSession()
    token = torch.ones(1, device=device)
    torch.cuda.synchronize(device)
    with torch_profiler(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        experimental_config=_ExperimentalConfig(expose_kineto_event_metadata=True),
        acc_events=True,  # there is one cycle only; without this torch warns that it forgets earlier ones
    ) as profiler:
        # A kernel that is sure to run: without any record of it the profiler is blind, and empty work is
        # not to blame.
        with session.range(_PROOF):
            token.add_(1)
        yield session
        torch.cuda.synchronize(device)
    results = getattr(profiler.profiler, "kineto_results")  # noqa: B009  (absent from torch's stubs)
    session.close(results.events())


def read_events(events: Iterable[Any]) -> tuple[list[Range[int]], list[Launch], list[Activity]]:
    """Sort the events of torch's kineto results into the three tables of the join; ranges go by number.

    Kinds are told by device and name: the kind itself is not exposed by every torch that lamina runs on.
    """
    ranges: list[Range[int]] = []
    launches: list[Launch] = []
    activities: list[Activity] = []
    for event in events:
        name = event.name()
        if event.device_type() != DeviceType.CPU:
            if not event.is_user_annotation():  # the device-side shadow of a record_function
                activities.append(_activity(event))
        elif match := _RANGE_NAME.fullmatch(name):
            ranges.append(Range(int(match[1]), event.start_ns(), event.end_ns()))
        elif _RUNTIME_CALL.fullmatch(name):
            launches.append(Launch(event.correlation_id(), name, event.start_ns()))
    return ranges, launches, activities


def _activity(event: Any) -> Activity:
    shape = _launch_shape(event.metadata_json() or "")
    return Activity(
        correlation=event.correlation_id(),
        name=event.name(),
        start_ns=event.start_ns(),
        duration_ns=event.duration_ns(),
        grid=_triple(shape.get("grid")),
        block=_triple(shape.get("block")),
        registers=shape.get("registers per thread"),
        shared_bytes=shape.get("shared memory"),
    )


def _launch_shape(metadata: str) -> dict[str, Any]:
    """What kineto tells of a launch: the inside of a JSON object, of no promised form; {} if unreadable."""
    try:
        shape: dict[str, Any] = json.loads("{" + metadata + "}")
    except ValueError:
        return {}
    return shape


def _triple(values: list[int] | None) -> tuple[int, int, int] | None:
    return None if values is None else (values[0], values[1], values[2])


@dataclass(frozen=True)
class KernelTimes(Generic[K]):
    """What CUPTI saw of several pieces of work, and how completely."""

    timings: Mapping[K, Timing]
    kernels: Mapping[K, tuple[Activity, ...]]  # of the median call, in the order the device ran them
    unattributed: int  # activities whose launch is not known; they are in no timing
    unanswered: int  # kernel launches of a callable without a record of the kernel
    coverage: float  # share of device time, 0 to 1, whose launch is known


class Tally(Generic[K]):
    """Samples and losses of all sessions so far. A sample is what one call, or one iteration, launched."""

    def __init__(self) -> None:
        self.samples: dict[K, list[tuple[Activity, ...]]] = {}
        self.unattributed = 0
        self.unanswered = 0
        self._known_ns = 0
        self._lost_ns = 0

    def add(self, attribution: Attribution[tuple[K, int]]) -> None:
        """Count in a session whose ranges went by key and repetition."""
        for (key, _), activities in attribution.ranges.items():
            self.samples.setdefault(key, []).append(activities)
        self.unattributed += len(attribution.unattributed)
        self.unanswered += len(attribution.unanswered)
        self._known_ns += attribution.known_ns
        self._lost_ns += attribution.lost_ns

    def times_us(self, key: K) -> list[float]:
        """Device time of each sample."""
        return [_duration_ns(sample) / 1e3 for sample in self.samples[key]]

    def report(self, l2: str) -> KernelTimes[K]:
        """Quartiles and typical kernels of every key."""
        if self.unattributed or self.unanswered:
            _log.warning(
                "CUPTI: %d device activities without a known launch and %d launches without a record; "
                "they are in no timing",
                self.unattributed,
                self.unanswered,
            )
        total_ns = self._known_ns + self._lost_ns
        return KernelTimes(
            timings={
                key: summarize(self.times_us(key), "cupti", l2, statistics.mode(map(len, samples)))
                for key, samples in self.samples.items()
            },
            kernels={key: _median_call(samples) for key, samples in self.samples.items()},
            unattributed=self.unattributed,
            unanswered=self.unanswered,
            coverage=self._known_ns / total_ns if total_ns else 1.0,
        )


def _median_call(samples: Sequence[tuple[Activity, ...]]) -> tuple[Activity, ...]:
    """The call of median duration among those with the usual number of activities."""
    usual = statistics.mode(map(len, samples))
    ordered = sorted((sample for sample in samples if len(sample) == usual), key=_duration_ns)
    return ordered[(len(ordered) - 1) // 2]


def _duration_ns(sample: Sequence[Activity]) -> int:
    return sum(activity.duration_ns for activity in sample)
