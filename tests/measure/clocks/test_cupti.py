"""CUPTI: the rounds of sampling, and on a GPU the truth of the sums."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import pytest
import torch

from lamina.measure.attribution import Activity, Attribution, Launch, Range, attribute
from lamina.measure.clocks import cupti as room
from lamina.measure.clocks.cupti import CuptiClock
from lamina.measure.clocks.events import EventsClock
from lamina.measure.repeat import Repeat


class FakeCard:
    """Answers sessions: callables return the durations (ns) of the kernels that one call of them launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.sessions: list[tuple[int, int]] = []  # callables and samples of each
        self.seconds = seconds
        monkeypatch.setattr(room, "resolve", torch.device)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(room, "_session", self.session)

    def session(
        self, fns: Mapping[str, Callable[[], list[int]]], n: int, *_: object
    ) -> tuple[Attribution[tuple[str, int]], float]:
        self.sessions.append((len(fns), n))
        ranges, launches, kernels = [], [], []
        for key, fn in fns.items():
            for repetition in range(n):
                start = 10 * len(ranges)
                ranges.append(Range((key, repetition), start, start + 5))
                for duration in fn():
                    launches.append(Launch(len(launches), "cudaLaunchKernel", start + 1))
                    kernels.append(Activity(len(kernels), f"k{duration}", len(kernels), duration))
        lost = [Activity(-1, "lost", 0, 100), Activity(-2, "lost", 0, 100)]
        return attribute(ranges, launches, [*kernels, *lost]), self.seconds


def noisy() -> Callable[[], list[int]]:
    state = [0]

    def call() -> list[int]:
        state[0] += 1
        return [1000 if state[0] % 2 else 3000]

    return call


RULE = Repeat(min_samples=10, max_samples=100, max_noise=0.02)


def test_quiet_callables_need_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    found = CuptiClock("cuda").time_many({"a": lambda: [3000, 1000], "b": lambda: [500], "c": list}, repeat=RULE)
    assert card.sessions == [(3, 10)]
    assert [found[key].median_us for key in "abc"] == [4.0, 0.5, 0.0]
    assert [found[key].kernels for key in "abc"] == [2, 1, 0]
    assert {timing.clock for timing in found.values()} == {"cupti"}
    assert {timing.n for timing in found.values()} == {10}


def test_only_noisy_callables_are_sampled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    found = CuptiClock("cuda").time_many({"quiet": lambda: [10], "noisy": noisy()}, repeat=RULE)
    assert card.sessions == [(2, 10), (1, 30), (1, 60)]
    assert (found["quiet"].n, found["noisy"].n) == (10, 100)
    assert (found["noisy"].q1_us, found["noisy"].q3_us) == (1.0, 3.0)


def test_the_time_limit_ends_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch, seconds=5.0)
    assert CuptiClock("cuda").time(noisy(), repeat=RULE).n == 10
    assert card.sessions == [(1, 10)]


def test_a_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    monkeypatch.setattr(room, "_MAX_RANGES", 25)
    fns = {number: lambda number=number: [number] for number in range(5)}
    found = CuptiClock("cuda").time_many(fns, repeat=RULE)
    assert card.sessions == [(2, 10), (2, 10), (1, 10)]
    assert [found[number].median_us for number in range(5)] == [0.0, 0.001, 0.002, 0.003, 0.004]


def test_unattributed_records_are_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FakeCard(monkeypatch)
    found = CuptiClock("cuda").kernels_of({"a": lambda: [180]}, repeat=RULE)
    assert (found.unattributed, found.unrecorded) == (2, 0)
    assert found.coverage == pytest.approx(1800 / 2000)
    assert "2 device activities without a known launch" in caplog.text


def test_the_kernels_of_the_median_call_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCard(monkeypatch)
    calls = iter([[9, 9, 9], *([duration, 5] for duration in (40, 10, 30, 20, 50, 60, 70, 80, 90))])
    found = CuptiClock("cuda").kernels_of({"a": lambda: next(calls)}, repeat=Repeat(max_samples=10))
    assert [item.name for item in found.kernels["a"]] == ["k50", "k5"]


def test_no_callables_give_no_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeCard(monkeypatch)
    assert CuptiClock("cuda").time_many({}) == {}
    assert card.sessions == []


@pytest.mark.gpu
def test_a_large_kernel_takes_as_long_as_by_events() -> None:
    # A copy: the time of a product follows the power limit, and so what ran before it.
    x = torch.randn(1 << 28, device="cuda")
    y = torch.empty_like(x)
    cupti, events = (kind("cuda").time(lambda: torch.neg(x, out=y), l2="cold") for kind in (CuptiClock, EventsClock))
    assert cupti.median_us == pytest.approx(events.median_us, rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_kernel_of_backward_is_attributed_though_another_thread_launched_it(l2: str) -> None:
    x = torch.randn(16, 64, 56, 56, device="cuda", requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    y = torch.nn.functional.conv2d(x, weight, padding=1)
    gradient = torch.randn_like(y)
    z = torch.randn(1 << 22, device="cuda")
    fns = {
        "forward": lambda: torch.nn.functional.conv2d(x, weight, padding=1),
        "backward_data": lambda: torch.autograd.grad(y, x, gradient, retain_graph=True),
        "backward_weight": lambda: torch.autograd.grad(y, weight, gradient, retain_graph=True),
        "one": lambda: z.add_(1),
        "three": lambda: z.add_(1).mul_(2).sub_(1),
        "nothing": lambda: z.view(-1),
        "copy": z.clone,
    }
    found = CuptiClock("cuda").kernels_of(fns, l2=l2)
    assert (found.unattributed, found.unrecorded, found.coverage) == (0, 0, 1.0)
    for phase in ("forward", "backward_data", "backward_weight"):
        assert found.timings[phase].median_us > 5, phase
        assert found.timings[phase].kernels, phase
    assert [found.timings[key].kernels for key in ("one", "three", "nothing", "copy")] == [1, 3, 0, 1]
    assert found.timings["nothing"].median_us == 0
    if l2 == "warm":  # after a flush only the first of the three finds a cold cache
        assert found.timings["three"].median_us == pytest.approx(3 * found.timings["one"].median_us, rel=0.2)
    (kernel,) = found.kernels["one"]
    assert kernel.grid is not None
    assert kernel.block is not None
    assert kernel.registers


@pytest.mark.gpu
def test_kernels_of_a_replayed_graph_are_attributed() -> None:
    x = torch.randn(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.add_(1)
        x.mul_(1)
    found = CuptiClock("cuda").kernels_of({"graph": graph.replay})
    assert found.timings["graph"].kernels == 2
    assert found.unattributed == 0
