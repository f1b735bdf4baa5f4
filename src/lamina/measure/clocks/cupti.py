"""CUPTI activity records: the time the device worked, kernel by kernel, without the gaps between them."""

from __future__ import annotations

import json
import logging
import re
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from lamina.errors import LaminaError, MissingError
from lamina.measure.attribution import Activity, Attribution, Launch, Range, attribute
from lamina.measure.clocks.flush import L2Flush
from lamina.measure.clocks.l2 import check_l2
from lamina.measure.device import resolve
from lamina.measure.repeat import DEFAULT, Repeat, noise, summarize
from lamina.record.timing import Timing

_log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
Sample = tuple[int, int]  # which callable, which repetition

_RANGE = "lamina:{}:{}"
_RANGE_NAME = re.compile(r"lamina:(\d+):(\d+)")
_RUNTIME_CALL = re.compile(r"(cuda|cu|hip)[A-Z]\w*")
_GROWTH = 4  # an unsettled callable has this many times its samples after the next session
_MOST_RANGES = 5000  # in one session: bounds the trace in memory


@dataclass(frozen=True)
class KernelTimes(Generic[K]):
    """What CUPTI saw of several callables, and how completely."""

    timings: Mapping[K, Timing]
    kernels: Mapping[K, tuple[Activity, ...]]  # of the median call, in the order the device ran them
    unattributed: int  # activities whose launch is not known; they are in no timing
    unanswered: int  # kernel launches of a callable without a record of the kernel
    coverage: float  # share of device time, 0 to 1, whose launch is known


class CuptiClock:
    """Sum of the durations of all kernels, copies and fills that one call launched, on any thread.

    Kernels that run at the same time on several streams count in full each. With l2='cold' a fill of twice
    the L2 is launched before each call, outside of its range, and so is not in the sum. `min_time_s` does
    not apply: each kernel is timed alone, so time itself adds nothing. Starting a session costs much more
    than a sample: give `time_many` everything there is to time. The callables must not profile themselves.
    """

    name = "cupti"

    def __init__(self, device: torch.device | str) -> None:
        self.device = resolve(device)

    def time(self, fn: Callable[[], object], *, l2: str = "warm", repeat: Repeat = DEFAULT) -> Timing:
        return self.time_many({"": fn}, l2=l2, repeat=repeat)[""]

    def time_many(
        self, fns: Mapping[K, Callable[[], object]], *, l2: str = "warm", repeat: Repeat = DEFAULT
    ) -> dict[K, Timing]:
        """The Timing of each callable, all in as few profiler sessions as possible."""
        return dict(self.kernels_of(fns, l2=l2, repeat=repeat).timings)

    def kernels_of(
        self, fns: Mapping[K, Callable[[], object]], *, l2: str = "warm", repeat: Repeat = DEFAULT
    ) -> KernelTimes[K]:
        """Timings, the kernels they consist of, and how many records found no home.

        Errors: MissingError if CUPTI reports no device activity at all.
        """
        check_l2(l2)
        tally: _Tally[K] = _Tally({key: [] for key in fns})
        with torch.cuda.device(self.device):
            flush = L2Flush(self.device) if l2 == "cold" else None
            pending, size, spent_s = list(fns), repeat.min_samples, 0.0
            while pending:
                step = max(1, _MOST_RANGES // size)
                for first in range(0, len(pending), step):
                    keys = pending[first : first + step]
                    calls = [fns[key] for key in keys]
                    attribution, seconds = _session(calls, size, flush, repeat.warmup, self.device)
                    tally.add(keys, attribution)
                    spent_s += seconds
                taken = len(tally.samples[pending[0]])
                if taken >= repeat.max_samples or spent_s >= repeat.max_time_s * len(fns):
                    break
                size = min((_GROWTH - 1) * taken, repeat.max_samples - taken)
                pending = [key for key in pending if noise(tally.times_us(key)) > repeat.max_noise]
        return tally.report(l2)


def _session(
    fns: Sequence[Callable[[], object]], n: int, flush: L2Flush | None, warmup: int, device: torch.device
) -> tuple[Attribution[Sample], float]:
    """Profile n calls of each callable; the attribution, and the seconds spent on calling."""
    token = torch.ones(1, device=device)
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        experimental_config=_ExperimentalConfig(expose_kineto_event_metadata=True),
        acc_events=True,  # there is one cycle only; without this torch warns that it forgets earlier ones
    ) as session:
        # A kernel that is sure to run: without any record of it the profiler is blind, and an empty
        # callable is not to blame.
        token.add_(1)
        start = time.perf_counter()
        for index, fn in enumerate(fns):
            for _ in range(warmup):
                fn()
            for repetition in range(n):
                if flush is not None:
                    flush()
                with record_function(_RANGE.format(index, repetition)):
                    fn()
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    results = getattr(session.profiler, "kineto_results")  # noqa: B009  (absent from torch's stubs)
    ranges, launches, activities = read_events(results.events())
    if not activities:
        raise MissingError(
            "expected device activity from CUPTI, got none: another profiler may hold it, or this machine "
            "does not offer it; use the 'events' or 'graph' clock"
        )
    if len(ranges) != len(fns) * n:
        raise LaminaError(f"expected {len(fns) * n} ranges in the profiler's trace, got {len(ranges)}")
    return attribute(ranges, launches, activities), seconds


def read_events(events: Iterable[Any]) -> tuple[list[Range[Sample]], list[Launch], list[Activity]]:
    """Sort the events of torch's kineto results into the three tables of the join.

    Kinds are told by device and name: the kind itself is not exposed by every torch that lamina runs on.
    """
    ranges: list[Range[Sample]] = []
    launches: list[Launch] = []
    activities: list[Activity] = []
    for event in events:
        name = event.name()
        if event.device_type() != DeviceType.CPU:
            if not event.is_user_annotation():  # the device-side shadow of a record_function
                activities.append(_activity(event))
        elif match := _RANGE_NAME.fullmatch(name):
            key = (int(match[1]), int(match[2]))
            ranges.append(Range(key, event.start_ns(), event.end_ns()))
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


class _Tally(Generic[K]):
    """Samples and losses of all sessions so far."""

    def __init__(self, samples: dict[K, list[tuple[Activity, ...]]]) -> None:
        self.samples = samples
        self.unattributed = 0
        self.unanswered = 0
        self._known_ns = 0
        self._lost_ns = 0

    def add(self, keys: Sequence[K], attribution: Attribution[Sample]) -> None:
        for (index, _), activities in attribution.ranges.items():
            self.samples[keys[index]].append(activities)
        self.unattributed += len(attribution.unattributed)
        self.unanswered += len(attribution.unanswered)
        self._known_ns += attribution.known_ns
        self._lost_ns += attribution.lost_ns

    def times_us(self, key: K) -> list[float]:
        return [_duration_ns(sample) / 1e3 for sample in self.samples[key]]

    def report(self, l2: str) -> KernelTimes[K]:
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
