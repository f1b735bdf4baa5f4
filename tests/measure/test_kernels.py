"""A profiler session: reading kineto's events, and bringing kernels home by key."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from lamina.errors import LaminaError, MissingError
from lamina.measure import kernels as room
from lamina.measure.attribution import Activity, Range, attribute
from lamina.measure.kernels import KernelSession, read_events, record_kernels


@dataclass
class Event:
    """What torch tells of one event of its trace."""

    what: str
    start: int
    end: int
    correlation: int = 0
    device: DeviceType = DeviceType.CPU
    annotation: bool = False
    metadata: str = ""

    def name(self) -> str:
        return self.what

    def device_type(self) -> DeviceType:
        return self.device

    def start_ns(self) -> int:
        return self.start

    def end_ns(self) -> int:
        return self.end

    def duration_ns(self) -> int:
        return self.end - self.start

    def correlation_id(self) -> int:
        return self.correlation

    def is_user_annotation(self) -> bool:
        return self.annotation

    def metadata_json(self) -> str:
        return self.metadata


SHAPE = '"registers per thread": 32, "shared memory": 1024, "grid": [7, 2, 1], "block": [64, 1, 1], "stream": 7'
GPU = DeviceType.CUDA
TRACE = [
    Event("lamina:0", 100, 200, correlation=1, annotation=True),
    Event("aten::mm", 110, 190, correlation=2),
    Event("cudaLaunchKernel", 120, 125, correlation=2),  # the ids of operators are another series
    Event("cuLaunchKernelEx", 130, 135, correlation=91),
    Event("cudaStreamSynchronize", 140, 150, correlation=92),
    Event("lamina:0", 300, 420, device=GPU, annotation=True),
    Event("gemm", 300, 330, correlation=2, device=GPU, metadata=SHAPE),
    Event("Memset (Device)", 340, 345, correlation=91, device=GPU),
    Event("triton_fused", 350, 420, correlation=555, device=GPU, metadata='"grid": inf'),
    Event("curious_operator", 1, 2),
    Event("lamina:0:7", 1, 2),
]


def test_events_are_sorted_into_three_tables() -> None:
    ranges, launches, activities = read_events(TRACE)
    assert ranges == [Range(0, 100, 200)]
    assert [item.name for item in launches] == [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaStreamSynchronize",
    ]
    assert activities == [
        Activity(2, "gemm", 300, 30, grid=(7, 2, 1), block=(64, 1, 1), registers=32, shared_bytes=1024),
        Activity(91, "Memset (Device)", 340, 5),
        Activity(555, "triton_fused", 350, 70),
    ]


def test_unattributed_kernels_of_a_trace_are_counted() -> None:
    result = attribute(*read_events(TRACE))
    assert [item.name for item in result.ranges[0]] == ["gemm", "Memset (Device)"]
    assert [item.name for item in result.unattributed] == ["triton_fused"]


def test_ranges_are_found_in_a_real_trace() -> None:
    """The structure of torch's own events, as far as a CPU shows it."""
    x = torch.ones(4, requires_grad=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        experimental_config=_ExperimentalConfig(expose_kineto_event_metadata=True),
    ) as session:
        for number in range(3):
            with record_function(room._RANGE.format(number)):
                torch.autograd.grad((x * x).sum(), x)
    events = session.profiler.kineto_results.events()
    ranges, launches, activities = read_events(events)
    assert [item.key for item in ranges] == [0, 1, 2]
    assert all(item.start_ns < item.end_ns for item in ranges)
    assert launches == activities == []
    assert all(isinstance(event.metadata_json(), str) for event in events)


class Profiler:
    """Stands in for torch's profiler and answers prepared events."""

    def __init__(self, events: list[Event]) -> None:
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))

    def __call__(self, **_: object) -> "Profiler":
        return self

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def session(monkeypatch: pytest.MonkeyPatch, events: list[Event], keys: Sequence[str]) -> KernelSession[str]:
    """A closed session with these ranges, for which the profiler saw these events."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(room, "torch_profiler", Profiler(events))
    with record_kernels(torch.device("cpu")) as opened:
        for key in keys:
            with opened.range(key):
                pass
    return opened


PROOF = [
    Event("lamina:0", 0, 9, annotation=True),
    Event("cudaLaunchKernel", 1, 2, correlation=1000),
    Event("add", 5, 6, correlation=1000, device=GPU),
]
LATER = [
    Event("lamina:1", 100, 200, annotation=True),
    Event("lamina:2", 300, 400, annotation=True),
    Event("cudaLaunchKernel", 120, 125, correlation=2),
    Event("cudaLaunchKernel", 310, 315, correlation=3),
    Event("cudaLaunchKernel", 250, 255, correlation=4),
    Event("relu", 300, 330, correlation=3, device=GPU),
    Event("gemm", 200, 290, correlation=2, device=GPU),
    Event("between", 400, 410, correlation=4, device=GPU),
]


def test_a_session_is_keyed_and_omits_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    found = session(monkeypatch, PROOF + LATER, ["fc", "relu"]).attribution
    assert {key: [one.name for one in home] for key, home in found.ranges.items()} == {"fc": ["gemm"], "relu": ["relu"]}
    assert [one.name for one in found.outside] == ["between"]


def test_a_profiler_without_records_raises_missing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="expected device activity from CUPTI, got none"):
        session(monkeypatch, [event for event in PROOF + LATER if event.device is not GPU], ["fc", "relu"])


def test_a_lost_range_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaminaError, match="expected 4 ranges in the profiler's trace, got 3"):
        session(monkeypatch, PROOF + LATER, ["fc", "relu", "softmax"])
