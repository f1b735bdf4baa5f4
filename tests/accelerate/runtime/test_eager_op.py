"""Operators are dispatched where something observes them, and skip the dispatcher elsewhere, with equal results."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lamina.accelerate.runtime import eager_op
from lamina.accelerate.runtime.eager_op import call_in_backward, can_skip_dispatch, without_dispatch


@torch.library.custom_op("lamina_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: Tensor, more: int) -> Tensor:
    return x * by * more


@scaled.register_fake
def _(x: Tensor, by: Tensor, more: int) -> Tensor:
    return torch.empty_like(x)


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, by, ctx.more = inputs
    ctx.save_for_backward(x, by)


def gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    x, by = ctx.saved_tensors
    return g * by * ctx.more, (g * x * ctx.more).sum(), None


scaled.register_autograd(gradient, setup_context=setup_context)
calls: list[str] = []


def run(x: Tensor, by: Tensor, more: int) -> Tensor:
    calls.append("direct")
    return x * by * more


either = without_dispatch(scaled, run, setup_context, gradient)


class Observer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Own(Tensor):
    pass


def ones() -> Tensor:
    return torch.ones(2)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def test_results_and_gradients_of_any_order_are_those_of_the_operator() -> None:
    x, by = torch.randn(3, dtype=torch.float64, requires_grad=True), torch.tensor(2.0, dtype=torch.float64)
    by.requires_grad_()
    torch.testing.assert_close(either(x, by, 3), scaled(x, by, 3))
    assert calls == ["direct"]
    assert torch.autograd.gradcheck(lambda *args: either(*args, 3), (x, by))
    assert torch.autograd.gradgradcheck(lambda *args: either(*args, 3), (x, by))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_saved(mode: Any) -> None:
    x = ones().requires_grad_()
    with mode():
        y = either(x, torch.tensor(2.0), 3)
    torch.testing.assert_close(y, torch.full((2,), 6.0))
    assert not y.requires_grad and calls == ["direct"]


def test_a_dispatch_mode_sees_the_operator() -> None:
    x, by = ones(), torch.tensor(2.0)
    with Observer() as mode:
        either(x, by, 3)
    assert mode.names == ["lamina_tests.scaled.default"] and not calls


def test_transforms_of_functions_see_the_operator() -> None:
    found: list[bool] = []

    def function(x: Tensor) -> Tensor:
        found.append(can_skip_dispatch(x))
        return x.sum()

    torch.func.vmap(function)(ones())
    torch.func.grad(function)(ones())
    assert found == [False, False] and can_skip_dispatch(ones())


def test_a_compiler_sees_the_operator() -> None:
    compiled = torch.compile(lambda x: either(x, torch.tensor(2.0), 3), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(ones()), torch.full((2,), 6.0))
    assert not calls


def test_tensor_subclasses_and_sparse_tensors_are_dispatched() -> None:
    assert can_skip_dispatch(ones(), torch.nn.Parameter(ones()), None, 3)
    assert not can_skip_dispatch(ones(), ones().as_subclass(Own))
    assert not can_skip_dispatch(ones(), ones().to_sparse())  # no storage, as batched gradients


def test_a_backward_pass_that_is_differentiated_again_calls_the_operator() -> None:
    x, by = ones(), torch.tensor(2.0)
    for enabled, direct_calls in ((False, ["direct"]), (True, [])):
        calls.clear()
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(call_in_backward(scaled, run, x, by, 3), torch.full((2,), 6.0))
        assert calls == direct_calls


def test_with_untested_versions_operators_are_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_op, "supported", lambda: False)
    torch.testing.assert_close(either(ones(), torch.tensor(2.0), 3), torch.full((2,), 6.0))
    assert not calls and not can_skip_dispatch(ones())
