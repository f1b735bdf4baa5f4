"""Graph replay: the subtraction of fills, captures that fail, and agreement with the other clocks."""

import pytest
import torch

from lamina.errors import UnsupportedError
from lamina.measure.clocks import capture
from lamina.measure.clocks.events import EventsClock
from lamina.measure.clocks.graph import GraphClock, difference
from lamina.record.timing import Timing


def timing(q1: float, median: float, q3: float) -> Timing:
    return Timing("graph", "cold", median, q1, q3, 20)


def test_the_fills_are_subtracted_and_both_spreads_kept() -> None:
    found = difference(timing(149.0, 150.0, 152.0), timing(49.0, 50.0, 51.0))
    assert found == Timing("graph", "cold", median_us=100.0, q1_us=98.0, q3_us=103.0, n=20)


@pytest.mark.parametrize(
    ("both", "alone"),
    [
        (timing(51, 52, 53), timing(49.9, 50, 50.1)),  # 2 us with a spread of 2.2
        (timing(49, 49, 49), timing(50, 50, 50)),
    ],
)
def test_a_result_within_the_spread_of_the_fills_is_rejected(both: Timing, alone: Timing) -> None:
    with pytest.raises(UnsupportedError, match="long against the spread of the L2 fills"):
        difference(both, alone)


class SyncMode:
    """Stands in for torch's switch that turns waiting into an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode: object = 0
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.set)

    def set(self, mode: object) -> None:
        self.mode = mode


def test_a_synchronizing_callable_is_rejected_and_the_mode_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SyncMode(monkeypatch)

    def waits() -> None:
        assert switch.mode == "error"
        raise RuntimeError("called a synchronizing CUDA operation\nmore advice")

    with pytest.raises(UnsupportedError, match="got: called a synchronizing CUDA operation;"):
        capture.run_without_sync(waits)
    assert switch.mode == 0


def test_code_that_asks_is_told_that_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Transformers' code does, which reads a mask on the host otherwise."""
    SyncMode(monkeypatch)
    told: list[bool] = []
    asked = torch.cuda.is_current_stream_capturing
    capture.run_without_sync(lambda: told.append(torch.cuda.is_current_stream_capturing()))
    with pytest.raises(ZeroDivisionError):
        capture.run_without_sync(lambda: 1 / 0)
    assert told == [True] and torch.cuda.is_current_stream_capturing is asked


def test_another_error_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SyncMode(monkeypatch)

    def breaks() -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        capture.run_without_sync(breaks)
    assert switch.mode == 0


def test_code_that_refuses_a_capture_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SyncMode(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def refuses() -> None:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not in a graph, please")

    with pytest.raises(UnsupportedError, match="CUDA can capture, got: not in a graph, please;"):
        capture.run_without_sync(refuses)
    assert switch.mode == 0


@pytest.mark.gpu
def test_code_that_synchronizes_only_where_it_is_not_captured_is_timed() -> None:
    x = torch.randn(64, 64, device="cuda")

    def product() -> torch.Tensor:
        return x @ x if torch.cuda.is_current_stream_capturing() or bool(x.isfinite().all()) else x

    assert GraphClock("cuda").time(product).median_us > 0


@pytest.mark.gpu
def test_small_kernels_take_less_than_by_events() -> None:
    x = torch.randn(1, device="cuda")
    graph, events = (kind("cuda").time(lambda: x.add_(1)) for kind in (GraphClock, EventsClock))
    assert 0.2 < graph.median_us < events.median_us


@pytest.mark.gpu
@pytest.mark.alone
def test_a_large_kernel_takes_as_long_as_by_events() -> None:
    # Bound by memory: the time of a matrix product follows the power limit, and so what ran before it.
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    graph, events = (kind("cuda").time(lambda: torch.neg(x, out=y)) for kind in (GraphClock, EventsClock))
    assert graph.median_us == pytest.approx(events.median_us, rel=0.05)


@pytest.mark.gpu
def test_backward_of_a_forward_on_another_stream_is_rejected() -> None:
    clock = GraphClock("cuda")
    x = torch.randn(1 << 20, device="cuda", requires_grad=True)
    y = (x * x).sum()
    with pytest.raises(UnsupportedError, match="expected a callable that CUDA can capture"):
        clock.time(lambda: torch.autograd.grad(y, x, retain_graph=True))
    with torch.no_grad():
        assert clock.time(lambda: x.mul_(1.0)).median_us > 0


@pytest.mark.gpu
def test_a_callable_without_kernels_is_rejected() -> None:
    x = torch.randn(16, device="cuda")
    with pytest.raises(UnsupportedError, match=r"(?i)graph is empty"):
        GraphClock("cuda").time(lambda: x.view(4, 4))
    assert torch.randn(4, device="cuda").isfinite().all()


@pytest.mark.gpu
def test_backward_is_captured_where_its_forward_ran() -> None:
    clock = GraphClock("cuda")
    x = torch.randn(8, 16, 32, 32, device="cuda", requires_grad=True)
    conv = torch.nn.Conv2d(16, 16, 3).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(clock.stream):
        y = conv(x)
        gradient = torch.randn_like(y)
    timing = clock.time(lambda: torch.autograd.grad(y, x, gradient, retain_graph=True))
    assert timing.median_us > 0


def waits_by_operator(x: torch.Tensor) -> object:
    return x.sum().item()


def waits_by_hand(x: torch.Tensor) -> object:
    torch.cuda.synchronize()
    return x.sum()


def draws_then_waits(x: torch.Tensor) -> object:
    y = torch.rand_like(x)
    torch.cuda.synchronize()
    return y


def breaks_in_python(x: torch.Tensor) -> object:
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not in a graph, please")
    return x.sum()


@pytest.mark.gpu
@pytest.mark.parametrize("fn", [waits_by_operator, waits_by_hand, draws_then_waits, breaks_in_python])
def test_a_failed_capture_leaves_the_device_usable(fn: object) -> None:
    clock = GraphClock("cuda")
    x = torch.randn(1 << 20, device="cuda")
    stream = torch.cuda.current_stream()
    with pytest.raises(UnsupportedError, match="graph clock: expected a callable"):
        clock.time(lambda: fn(x))  # type: ignore[operator]
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.empty_cache()
    assert torch.randn(100, device="cuda").isfinite().all()
    assert torch.empty(100).pin_memory().to("cuda", non_blocking=True).shape == (100,)
    assert GraphClock("cuda").time(lambda: x.mul_(1.0)).median_us > 0
    assert clock.time(lambda: torch.rand_like(x)).median_us > 0
    assert x.isfinite().all()
