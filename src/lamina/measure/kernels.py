"""Profiler sessions: the kernels of each named range."""

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

_PROBE: Any = object()
_RANGE = "lamina:{}"
_RANGE_NAME = re.compile(r"lamina:(\d+)")
_RUNTIME_CALL = re.compile(r"(cuda|cu|hip)[A-Z]\w*")


class KernelSession(Generic[K]):
    """An open session of `record_kernels`: name ranges while it is open, read `attribution` after it has closed."""

    def __init__(self) -> None:
        self._keys: list[K] = []
        self.attribution: Attribution[K] = Attribution({}, (), (), ())

    @contextmanager
    def range(self, key: K) -> Iterator[None]:
        """Everything launched inside belongs to `key`, on any thread. Ranges must not overlap."""
        number = len(self._keys)
        self._keys.append(key)
        with record_function(_RANGE.format(number)):
            yield

    def close(self, events: Iterable[Any]) -> None:
        """Join the profiler's events. Errors: MissingError if CUPTI reports no device activity at all."""
        ranges, launches, activities = read_events(events)
        if not activities:
            raise MissingError(
                "expected device activity from CUPTI, got none: another profiler may be using it, or this machine "
                "does not support it; use the 'events' or 'graph' clock"
            )
        if len(ranges) != len(self._keys):
            raise LaminaError(f"expected {len(self._keys)} ranges in the profiler's trace, got {len(ranges)}")
        named = [Range(self._keys[one.key], one.start_ns, one.end_ns) for one in ranges]
        found = attribute(named, launches, activities)
        ranges_ = {key: members for key, members in found.ranges.items() if key is not _PROBE}
        self.attribution = replace(found, ranges=ranges_)


@contextmanager
def record_kernels(device: torch.device) -> Iterator[KernelSession[Any]]:
    """Profile the block on a device."""
    session: KernelSession[Any] = KernelSession()
    token = torch.ones(1, device=device)
    torch.cuda.synchronize(device)
    with torch_profiler(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        experimental_config=_ExperimentalConfig(expose_kineto_event_metadata=True),
        acc_events=True,  # there is only one cycle; without this, torch warns that it discards earlier ones
    ) as profiler:
        # A kernel that always runs: if it has no record, the profiler does not work; otherwise the profiled
        # code launched nothing.
        with session.range(_PROBE):
            token.add_(1)
        yield session
        torch.cuda.synchronize(device)
    results = getattr(profiler.profiler, "kineto_results")  # noqa: B009  (absent from torch's stubs)
    session.close(results.events())


def read_events(events: Iterable[Any]) -> tuple[list[Range[int]], list[Launch], list[Activity]]:
    """Split the events of torch's kineto results into ranges (keyed by number), launches and activities.

    Events are classified by device and name: not every supported version of torch exposes their type.
    """
    ranges: list[Range[int]] = []
    launches: list[Launch] = []
    activities: list[Activity] = []
    for event in events:
        name = event.name()
        if event.device_type() != DeviceType.CPU:
            if not event.is_user_annotation():  # the device-side copy of a record_function
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
    """kineto's launch metadata, the inside of a JSON object whose format is undocumented; {} if it cannot be parsed."""
    try:
        shape: dict[str, Any] = json.loads("{" + metadata + "}")
    except ValueError:
        return {}
    return shape


def _triple(values: list[int] | None) -> tuple[int, int, int] | None:
    return None if values is None else (values[0], values[1], values[2])


@dataclass(frozen=True)
class KernelTimes(Generic[K]):
    """CUPTI timings and kernels of several callables, with their coverage."""

    timings: Mapping[K, Timing]
    kernels: Mapping[K, tuple[Activity, ...]]  # of the median call, in the order the device ran them
    unattributed: int  # activities whose launch is unknown; they are in no timing
    unrecorded: int  # kernel launches without an activity record
    coverage: float  # fraction of device time, 0 to 1, whose launch is known


class Tally(Generic[K]):
    """Samples and unattributed records of all sessions. A sample is the activities of one call or iteration."""

    def __init__(self) -> None:
        self.samples: dict[K, list[tuple[Activity, ...]]] = {}
        self.unattributed = 0
        self.unrecorded = 0
        self._known_ns = 0
        self._unattributed_ns = 0

    def add(self, attribution: Attribution[tuple[K, int]]) -> None:
        """Add a session whose ranges are keyed by key and repetition."""
        for (key, _), activities in attribution.ranges.items():
            self.samples.setdefault(key, []).append(activities)
        self.unattributed += len(attribution.unattributed)
        self.unrecorded += len(attribution.unrecorded)
        self._known_ns += attribution.known_ns
        self._unattributed_ns += attribution.unattributed_ns

    def times_us(self, key: K) -> list[float]:
        """Device time of each sample."""
        return [_duration_ns(sample) / 1e3 for sample in self.samples[key]]

    def report(self, l2: str) -> KernelTimes[K]:
        """Quartiles, and the kernels of the median call, of every key."""
        if self.unattributed or self.unrecorded:
            _log.warning(
                "CUPTI: %d device activities without a known launch and %d launches without a record; "
                "they are in no timing",
                self.unattributed,
                self.unrecorded,
            )
        total_ns = self._known_ns + self._unattributed_ns
        return KernelTimes(
            timings={
                key: summarize(self.times_us(key), "cupti", l2, statistics.mode(map(len, samples)))
                for key, samples in self.samples.items()
            },
            kernels={key: _median_call(samples) for key, samples in self.samples.items()},
            unattributed=self.unattributed,
            unrecorded=self.unrecorded,
            coverage=self._known_ns / total_ns if total_ns else 1.0,
        )


def _median_call(samples: Sequence[tuple[Activity, ...]]) -> tuple[Activity, ...]:
    """The call of median duration among those with the usual number of activities."""
    usual = statistics.mode(map(len, samples))
    ordered = sorted((sample for sample in samples if len(sample) == usual), key=_duration_ns)
    return ordered[(len(ordered) - 1) // 2]


def _duration_ns(sample: Sequence[Activity]) -> int:
    return sum(activity.duration_ns for activity in sample)
