"""Replays of launch plans, by kernels that read and write memory at addresses."""

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.bounded_cache import BoundedCache
from lamina.accelerate.runtime.launch_cache import STREAM, cached_launches, record_launch


def add(stream: None, a: int, b: int, out: int, size: int) -> None:
    """``out = a + b`` of float32 elements at addresses."""
    array = ctypes.c_float * size
    left, right, sums = (array.from_address(address) for address in (a, b, out))
    for i in range(size):
        sums[i] = left[i] + right[i]


def launch(a: Tensor, b: Tensor, out: Tensor) -> None:
    add(None, a.data_ptr(), b.data_ptr(), out.data_ptr(), out.numel())
    record_launch(add, STREAM, a, b, out, out.numel(), addresses=True)


class Counted:
    """A function with cached launches that counts how often it runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.runs, self.function = 0, function
        self.cached = cached_launches(self.run)

    def run(self, *args: Any) -> Any:
        self.runs += 1
        return self.function(*args)

    def check(self, *several: tuple[Any, ...], runs: int = 2) -> None:
        """Each call returns what the function returns, which has run ``runs`` times."""
        for args in several:
            actual, expected = self.cached(*args), self.function(*args)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        assert self.runs == runs


def random(*size: int) -> Tensor:
    return torch.randn(size)


def test_the_third_call_replays() -> None:
    def double(x: Tensor) -> Tensor:
        out = x.new_empty(x.shape)
        launch(x, x, out)
        return out

    Counted(double).check(*[(random(5),) for _ in range(5)])


def test_slices_of_inputs_and_intermediates_keep_their_offsets() -> None:
    def shifted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows, more = x.new_empty(4, 3), x.new_empty(2, 3)
        for t in range(4):
            launch(x[t : t + 1], y[3 - t], rows[t])
        launch(rows[1:3], rows.flatten()[6:], more.view(-1))
        return more, rows[2]

    Counted(shifted).check(*[(random(5, 3), random(4, 3)) for _ in range(4)])


def test_inputs_may_be_slices_of_one_tensor() -> None:
    def both(x: Tensor, y: Tensor) -> Tensor:
        out = x.new_empty(2, 4)
        launch(x[:4], y[4:], out[0])
        launch(y[:4], x[4:], out[1])
        return out

    flat = random(64)
    Counted(both).check(*[(flat[i : i + 8], flat[j : j + 8]) for i, j in ((0, 8), (16, 48), (48, 16), (8, 32))])


def test_operators_between_launches_are_replayed() -> None:
    def summed(x: Tensor, last: Tensor | None) -> Tensor:
        carry = x.new_empty(2, 4)
        carry[0] = 0 if last is None else last
        launch(x[0], carry[0], carry[1])
        wide = (carry.double() * 2).sum(0).float()
        launch(wide, carry[1], carry[0])
        return carry.mT.contiguous()

    Counted(summed).check(*[(random(2, 4), random(4)) for _ in range(4)])
    Counted(summed).check(*[(random(2, 4), None) for _ in range(4)])


def test_a_tensor_that_the_function_keeps_is_read_in_place() -> None:
    kept = random(3)

    def plus(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launch(x, kept, out)
        return out + kept

    counted = Counted(plus)
    counted.check(*[(random(3),) for _ in range(3)])
    kept.fill_(7)
    counted.check((random(3),))


def test_dead_steps_are_removed() -> None:
    def wasteful(x: Tensor) -> Tensor:
        x.new_empty(1000)
        _ = (x * 3)[1:]
        return x + 1

    *_, (plan,) = plans(wasteful, (random(3),))
    assert len(plan.steps) == 1


def plans(function: Callable[..., Any], *several: tuple[Any, ...]) -> Iterator[tuple[launch_cache.LaunchPlan, ...]]:
    """The plans in the cache after two calls with each."""
    again = cached_launches(function)
    for args in several:
        for _ in range(2):
            again(*args)
        yield tuple(each for each in launch_cache._plans.values() if isinstance(each, launch_cache.LaunchPlan))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x.sum().item(),
        lambda x: x[x > 0].sum(),
        lambda x: x.max(0)[0],
        lambda x: torch.cat([x, x]),
        lambda x: torch.add(x, 1, out=torch.empty(6)),
    ],
    ids=["read by the host", "size read by the host", "several results", "list of tensors", "tensor by name"],
)
def test_what_is_not_replayable_runs_each_time(function: Callable[..., Any]) -> None:
    Counted(function).check(*[(random(6),) for _ in range(4)], runs=4)


def test_one_tensor_as_two_arguments_is_not_recorded() -> None:
    def plus(x: Tensor, y: Tensor) -> Tensor:
        out = x.new_empty(x.shape)
        launch(x, y, out)
        return out

    x = random(4)
    Counted(plus).check(*[(x, x)] * 2, *[(random(4), random(4)) for _ in range(3)], runs=5)
    Counted(plus).check(*[(random(4), random(4)) for _ in range(3)], (x, x))


def test_shapes_strides_dtypes_alignments_and_constants_are_part_of_the_key() -> None:
    def times(x: Tensor, by: int) -> Tensor:
        return x * by

    cases = [
        (random(4, 4), 2), (random(2, 8), 2), (random(4, 4).T, 2), (random(4, 4).double(), 2),
        (random(17)[1:].view(4, 4), 2), (random(4, 4), 3),
    ]  # fmt: skip
    assert [len(found) for found in plans(times, *cases)] == [1, 2, 3, 4, 5, 6]


def test_the_precision_of_float32_products_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "precision", iter(["ieee", "ieee", "tf32", "tf32"]).__next__)
    assert [len(found) for found in plans(lambda x: x + 1, *[(random(3),)] * 2)] == [1, 2]


def test_autocast_is_part_of_the_key() -> None:
    counted = Counted(lambda x: x @ x)
    for on in (False, True, True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            x = random(4, 4)
            torch.testing.assert_close(counted.cached(x), x @ x, rtol=0, atol=0)
    assert counted.runs == 4


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_plans_are_recorded_in_every_gradient_mode(mode: Callable[[], Any]) -> None:
    def steps(x: Tensor) -> Tensor:
        y = x.new_empty(3)
        y.copy_(x)
        launch(y, y.reshape(3), y)
        return (y * 2).sum(0, keepdim=True) + y[1:]

    with mode():
        Counted(steps).check(*[(random(3),) for _ in range(4)])


def test_the_cache_is_bounded_and_evicts_the_oldest_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "_plans", BoundedCache(2))
    *_, last = plans(lambda x: x + 1, *[(random(size),) for size in (1, 2, 3)])
    assert len(last) == 2
    Counted(lambda x: x + 1).check(*[(random(size),) for size in (1, 1, 2, 2, 3, 3, 1, 1)], runs=8)


def test_with_untested_versions_the_function_runs_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cache, "supported", lambda: False)
    Counted(lambda x: x + 1).check(*[(random(3),) for _ in range(4)], runs=4)
    assert not launch_cache._plans


def test_a_function_that_fails_is_not_recorded() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no")

    again = cached_launches(fails)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            again(random(1))
    assert launch_cache._local.recorder is None


def test_threads_record_and_replay_at_once() -> None:
    def double(x: Tensor) -> Tensor:
        out = x.new_empty(x.shape)
        launch(x, x, out)
        return out.mul(0.5).add(x)

    again = cached_launches(double)
    several = [random(50) for _ in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for x, y in zip(several, threads.map(again, several), strict=True):
            assert torch.equal(y, x + x)


def test_a_cached_function_within_another_is_part_of_its_plan() -> None:
    inner = cached_launches(lambda x: x * 2)

    def outer(x: Tensor) -> Tensor:
        return inner(x) + inner(x)

    Counted(outer).check(*[(random(3),) for _ in range(4)])


@given(st.data())
def test_any_sequence_of_launches_and_operators_is_replayed(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.tuples(st.sampled_from("lvof"), *[st.integers(0, 11)] * 3), min_size=1, max_size=12))

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = [x.new_zeros(12)]
        there = [x, y, *made]
        for kind, a, b, at in steps:
            one, other = there[a % len(there)], there[b % len(there)]
            if kind == "l":
                out = x.new_zeros(12)
                size = min(one.numel(), other.numel(), 12 - at)
                launch(one, other, out[at : at + size])
                made.append(out)
            elif kind == "v":
                there.append(one[min(at, one.numel() - 1) :])
                continue
            elif kind == "o":
                made.append(one[:1] * 2 + other[-1:])
            else:
                made[a % len(made)].flatten()[-1:] = other[:1]
                continue
            there.append(made[-1])
        return tuple(made)

    Counted(function).check(*[(random(12), random(7)) for _ in range(3)])
