"""Which clock fits which device."""

import pytest
import torch

from lamina.errors import MissingError, UsageError
from lamina.measure import clocks as room
from lamina.measure.clocks import clock, clocks_for
from lamina.measure.clocks.cpu import CpuClock
from lamina.measure.clocks.l2 import check_l2


def test_the_cpu_has_one_clock() -> None:
    assert clocks_for("cpu") == ("cpu",)
    assert isinstance(clock("cpu", "cpu"), CpuClock)


def test_a_gpu_has_four_clocks_the_preferred_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "resolve", torch.device)
    assert clocks_for("cuda") == ("cupti", "events", "graph", "wall")
    with pytest.raises(UsageError, match="'cpu' clock does not support cuda devices: use cupti, events, graph"):
        clock("cpu", "cuda")


def test_a_clock_of_another_device_is_rejected() -> None:
    with pytest.raises(UsageError, match="'events' clock does not support cpu devices: use cpu"):
        clock("events", "cpu")


def test_an_unknown_clock_is_rejected_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "resolve", torch.device)
    with pytest.raises(UsageError, match="unknown clock 'event': did you mean 'events'"):
        clock("event", "cuda")


def test_a_missing_gpu_raises_missing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cupti", "events", "graph", "wall"):
        with pytest.raises(MissingError):
            clock(name, "cuda")


def test_l2_states() -> None:
    check_l2("warm")
    check_l2("cold")
    with pytest.raises(UsageError, match="unknown L2 state 'hot'"):
        check_l2("hot")


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", ["cupti", "events", "graph"])
@pytest.mark.parametrize("l2", ["warm", "cold"])
def test_every_clock_times_a_product(name: str, l2: str) -> None:
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    timing = clock(name, "cuda").time(lambda: torch.mm(a, b), l2=l2)
    assert (timing.clock, timing.l2) == (name, l2)
    assert 50 < timing.median_us < 50_000
    assert timing.q1_us <= timing.median_us <= timing.q3_us
    assert timing.n >= 1


@pytest.mark.gpu
def test_a_cold_cache_costs_time() -> None:
    """A read of 8 MB that stays in any recent L2."""
    x = torch.randn(2_000_000, device="cuda")
    for name in ("cupti", "events"):
        warm, cold = (clock(name, "cuda").time(x.sum, l2=l2) for l2 in ("warm", "cold"))
        assert cold.median_us > warm.median_us, name
