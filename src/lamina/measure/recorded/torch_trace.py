"""Imports a torch.profiler trace as a run: every kernel under the layer that launched it.

A kernel is joined by correlation id with the call that launched it. The layer of that call is given by

- the range named ``lamina:LAYER/PHASE`` around it in time, if the trace has such ranges; otherwise
- for autograd, the forward operation with the same sequence number; otherwise
- the innermost ``record_function`` or ``nn.Module`` around it on its thread; otherwise
- the outermost operation around it.

A trace does not separate the two gradients of a layer: all work of autograd is ``backward_data``.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lamina.errors import LaminaError, SpecError
from lamina.measure.attribution import Activity, Launch, Range, attribute
from lamina.measure.recorded.chrome import STEP, Call, Events, Span, read, version
from lamina.measure.recorded.recording import Recording, key_of, layer_and_phase, layer_indices, row_of, run_of
from lamina.measure.repeat import summarize
from lamina.record import Coverage, KernelRun, Key

LayerPhase = tuple[str, str]
"""Layer and phase."""

_OWN = "lamina:"
_NO_LAYER = re.compile(r"ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|\[pl\]|## ")
_OUTSIDE = ("Optimizer.", "enumerate(DataLoader)")
_MERGED_GRADIENTS = "this trace does not separate data and weight gradients: both are in backward_data"


def from_torch_trace(document: Any, content: bytes, name: str) -> Recording:
    """The run in a Chrome trace.

    Args:
        document: the trace's JSON.
        content: the bytes of the file; the run id is derived from them.
        name: the file's name.

    If the trace has several steps of a profiler schedule, times are quartiles over the steps, and the kernels are
    those of the median step.

    Errors:
        SpecError: not a trace, or a trace without kernels.
    """
    events = read(document, name)
    if not events.activities:
        raise SpecError(name, "expected kernels, got none: profile with ProfilerActivity.CUDA as well as CPU")
    owners = _by_ranges(events, name) if any(s.name.startswith(_OWN) for s in events.spans) else _by_stack(events)
    steps = _steps(events, owners)
    usual = statistics.mode(map(len, steps))
    ordered = sorted((step for step in steps if len(step) == usual), key=_total_us)
    typical = ordered[(len(ordered) - 1) // 2]
    if all(owner is None for _, owner in typical):
        raise SpecError(name, "no kernel can be tied to a layer: profile with ProfilerActivity.CPU as well as CUDA")
    return _recording(events, steps, typical, content, name)


def _by_ranges(events: Events, source: str) -> list[tuple[Activity, LayerPhase | None]]:
    """The layer and phase of each activity by lamina's own ranges, on any thread."""
    named = [span for span in events.spans if span.name.startswith(_OWN)]
    ranges = [Range((at, span.name), span.start_ns, span.end_ns) for at, span in enumerate(named)]
    launches = [Launch(call.correlation, "", call.start_ns) for call in events.calls]
    try:
        found = attribute(ranges, launches, events.activities)
    except LaminaError as error:
        raise SpecError(source, str(error)) from error
    inside = [(one, layer_and_phase(key[1].removeprefix(_OWN))) for key, owner in found.ranges.items() for one in owner]
    return [*inside, *((one, None) for one in (*found.outside, *found.unattributed))]


def _by_stack(events: Events) -> list[tuple[Activity, LayerPhase | None]]:
    """The layer and phase of each activity by the spans that were open on the launching thread."""
    made_by: dict[int, dict[str, str]] = defaultdict(dict)
    pending: list[tuple[Call, LayerPhase | int | None]] = []
    for thread, spans, calls in _threads(events):
        for item, stack in _walk(spans, calls):
            if isinstance(item, Call):
                pending.append((item, _layer_phase(stack)))
            elif item.sequence is not None and not item.backward and isinstance(layer := _layer_phase(stack), tuple):
                made_by[item.sequence][thread] = layer[0]  # the innermost of nested operations creates the node

    found: dict[int, set[LayerPhase | None]] = defaultdict(set)
    for call, owner in pending:
        if isinstance(owner, int):
            # Sequence numbers are per thread: if several threads have this one, the layer is ambiguous.
            layers = set(made_by[owner].values())
            owner = (layers.pop(), "backward_data") if len(layers) == 1 else None
        found[call.correlation].add(owner)
    return [(one, _only(found.get(one.correlation, set()))) for one in events.activities]


def _only(owners: set[LayerPhase | None]) -> LayerPhase | None:
    return next(iter(owners)) if len(owners) == 1 else None


def _threads(events: Events) -> Iterator[tuple[str, list[Span], list[Call]]]:
    spans: dict[str, list[Span]] = defaultdict(list)
    calls: dict[str, list[Call]] = defaultdict(list)
    for span in events.spans:
        spans[span.thread].append(span)
    for call in events.calls:
        calls[call.thread].append(call)
    for thread in dict.fromkeys([*spans, *calls]):
        yield thread, spans[thread], calls[thread]


def _walk(spans: Iterable[Span], calls: Iterable[Call]) -> Iterator[tuple[Span | Call, Sequence[Span]]]:
    """Spans and calls of a thread in order of time, each with the spans open at that time, itself included."""
    begins: list[tuple[int, int, int, Span | Call]] = [(span.start_ns, 0, -span.end_ns, span) for span in spans]
    order = sorted([*begins, *((call.start_ns, 1, 0, call) for call in calls)], key=lambda item: item[:3])
    stack: list[Span] = []
    for now, _, _, item in order:
        while stack and stack[-1].end_ns < now:
            stack.pop()
        if isinstance(item, Span):
            stack.append(item)
        yield item, stack


def _layer_phase(stack: Sequence[Span]) -> LayerPhase | int | None:
    """Layer and phase of a call inside these spans, or the sequence number of the backward node it belongs to."""
    for span in reversed(stack):
        if span.backward:
            return next((s.sequence for s in reversed(stack) if s.backward and s.sequence is not None), None)
        if span.kind != "op":
            if span.name.startswith(_OUTSIDE):
                return None
            if not _NO_LAYER.match(span.name):
                return layer_and_phase(span.name)
    return next(((span.name, "forward") for span in stack if span.kind == "op"), None)


Step = list[tuple[Activity, LayerPhase | None]]


def _steps(events: Events, owners: Iterable[tuple[Activity, LayerPhase | None]]) -> list[Step]:
    """The activities of each step of the schedule, by launch time; all activities in one step without a schedule.

    Activities launched between steps are omitted.
    """
    spans = sorted((s for s in events.spans if STEP.fullmatch(s.name)), key=lambda span: span.start_ns)
    if not spans:
        return [sorted(owners, key=lambda pair: pair[0].start_ns)]
    launched = {call.correlation: call.start_ns for call in events.calls}
    starts = [span.start_ns for span in spans]
    steps: list[Step] = [[] for _ in spans]
    for activity, owner in sorted(owners, key=lambda pair: pair[0].start_ns):
        at = bisect_right(starts, launched.get(activity.correlation, activity.start_ns)) - 1
        if at >= 0:
            steps[at].append((activity, owner))
    return [step for step in steps if step] or [sorted(owners, key=lambda pair: pair[0].start_ns)]


def _total_us(step: Step) -> float:
    return sum(activity.duration_ns for activity, _ in step) / 1e3


def _by_key(step: Step) -> dict[Key, list[Activity]]:
    kernels: dict[Key, list[Activity]] = {}
    for activity, owner in step:
        if owner is not None:
            kernels.setdefault(key_of(*owner), []).append(activity)
    return kernels


def _recording(events: Events, steps: Sequence[Step], typical: Step, content: bytes, name: str) -> Recording:
    samples: dict[Key, list[float]] = defaultdict(list)
    for step in steps:
        for key, activities in _by_key(step).items():
            samples[key].append(sum(one.duration_ns for one in activities) / 1e3)
    kernels = _by_key(typical)
    device = str(events.device.get("name", "unknown GPU"))
    index = layer_indices(kernels)
    rows = tuple(
        row_of(key, index[key.layer], device, summarize(samples[key], "cupti", "warm", len(activities)))
        for key, activities in kernels.items()
    )
    launches = tuple(
        KernelRun(key, i, one.name, one.grid, one.block, one.registers, one.shared_bytes, one.duration_ns / 1e3)
        for key, activities in kernels.items()
        for i, one in enumerate(activities)
    )
    unattributed: dict[str, float] = {}
    for one, owner in typical:
        if owner is None:
            unattributed[one.name] = unattributed.get(one.name, 0.0) + one.duration_ns / 1e3
    like = key_of("", "")
    attributed = sum(launch.duration_us for launch in launches)
    coverage = Coverage(like.impl, like.precision, like.layout, like.batch, len(launches), attributed, unattributed)
    notes = [_MERGED_GRADIENTS] if any(key.phase != "forward" for key in kernels) else []
    config = {"format": "torch.profiler", "steps": len(steps)}
    run = run_of(content, name, _date(events), _environment(events, device), config, notes)
    return Recording(run, rows, launches, (), coverage)


def _environment(events: Events, device: str) -> Mapping[str, Any]:
    card, header = events.device, events.header
    major, minor = card.get("computeMajor"), card.get("computeMinor")
    return {
        "device": device,
        "device_kind": "cuda",
        "cuda": version(header.get("cuda_runtime_version")),
        "compute_capability": None if major is None or minor is None else f"{major}.{minor}",
        "sm_count": card.get("numSms"),
        "memory_bytes": card.get("totalGlobalMem"),
    }


def _date(events: Events) -> str:
    """Start of the trace, ISO 8601, UTC; the date of the import if the trace does not contain it."""
    base = events.header.get("baseTimeNanoseconds")
    first = min(activity.start_ns for activity in events.activities)
    try:
        moment = datetime.fromtimestamp((base + first) / 1e9, UTC) if type(base) is int else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.now(UTC)
    return moment.isoformat(timespec="seconds")
