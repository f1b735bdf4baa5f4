"""Replayed operators have the results, gradients and errors of the same operators in Python."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.runtime.replay import ReplayedOperator, register_kernel, replays_one_operator

FORWARD_MODE = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
pytestmark = pytest.mark.usefixtures("where_kernels_run")

computed: list[str] = []


def run(x: Tensor, w: Tensor, bias: Tensor | None, more: int) -> tuple[Tensor, Tensor]:
    computed.append("forward")
    product = x @ w
    out = x.new_empty(product.shape).copy_(product * more)
    return out if bias is None else out + bias, product


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, w, bias, ctx.more = inputs
    ctx.biased = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, None, output[1])


def gradient(ctx: Any, g: Tensor | None, of_product: Tensor | None) -> tuple[Any, ...]:
    computed.append("backward")
    x, w, _, product = ctx.saved_tensors
    if g is None and of_product is None:
        return None, None, None, None
    assert product.shape == (x.shape[0], w.shape[1])
    whole = (0 if g is None else g * ctx.more) + (0 if of_product is None else of_product)
    for_x, for_w, for_bias, _ = ctx.needs_input_grad
    return (
        whole @ w.T if for_x else None,
        x.T @ whole if for_w else None,
        g.sum(0) if for_bias and ctx.biased and g is not None else None,
        None,
    )


@torch.library.custom_op("lamina_tests::replayed_product", mutates_args=())
def product(x: Tensor, w: Tensor, bias: Tensor | None, more: int) -> tuple[Tensor, Tensor]:
    return run(x, w, bias, more)


@product.register_fake
def _(x: Tensor, w: Tensor, bias: Tensor | None, more: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w.shape[1]), x.new_empty(x.shape[0], w.shape[1])


product.register_autograd(gradient, setup_context=setup_context)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = run(*inputs)
        setup_context(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradient(ctx, *gradients)


@pytest.fixture
def replay(native: Any) -> ReplayedOperator:
    computed.clear()
    return ReplayedOperator("ProductBackward", run, setup_context, gradient)


def call(replay: ReplayedOperator, *args: Any) -> tuple[Tensor, Tensor]:
    out = replay(args)
    if out is None:
        out = Function.apply(*args) if torch.is_grad_enabled() else run(*args)  # type: ignore[no-untyped-call]
    return out


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    x, w, bias = torch.randn(3, 4, dtype=dtype), torch.randn(4, 2, dtype=dtype), torch.randn(2, dtype=dtype)
    return x.requires_grad_(), w.requires_grad_(), bias.requires_grad_()


def warm(replay: ReplayedOperator, more: int = 3) -> None:
    """Calls until forward and backward are replayed."""
    for _ in range(4):
        x, w, bias = leaves()
        call(replay, x, w, bias, more)[0].sum().backward()
    computed.clear()


def test_python_runs_until_calls_are_recorded_and_then_no_more(replay: ReplayedOperator) -> None:
    warm(replay)
    for number in range(4):
        x, w, bias = leaves()
        out, kept = call(replay, x, w, bias, 3)
        assert torch.equal(out, x @ w * 3 + bias) and torch.equal(kept, x @ w)
        g = torch.randn_like(out)
        for ours, theirs in zip(
            torch.autograd.grad(out, (x, w, bias), g), (g * 3 @ w.T, x.T @ (g * 3), g.sum(0)), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert computed == ["backward"] * (number == 0)  # once for gradients of another layout
        computed.clear()
    assert out.grad_fn is not None and out.grad_fn.name() == "ProductBackward"


def test_calls_within_compile_ahead_are_not_replayed_afterwards(replay: ReplayedOperator) -> None:
    with compile_ahead():
        for _ in range(4):
            x, w, bias = leaves()
            call(replay, x, w, bias, 3)[0].sum().backward()
    assert computed.count("forward") >= 4 and computed.count("backward") >= 4
    computed.clear()
    for _ in range(4):
        x, w, bias = leaves()
        call(replay, x, w, bias, 3)[0].sum().backward()
    assert computed.count("forward") == 2  # recorded then


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_wanted_gradients_are_computed(replay: ReplayedOperator, wanted: tuple[int, ...]) -> None:
    for _ in range(5):
        tensors = leaves()
        out, _ = call(replay, *tensors, 2)
        ours = torch.autograd.grad(out.sum(), [tensors[i] for i in wanted])
        theirs = torch.autograd.grad((tensors[0] @ tensors[1] * 2 + tensors[2]).sum(), [tensors[i] for i in wanted])
        assert all(map(torch.allclose, ours, theirs))
    assert computed.count("backward") == 2


def test_gradients_of_other_outputs_and_orders(replay: ReplayedOperator) -> None:
    warm(replay)
    assert torch.autograd.gradcheck(lambda *args: call(replay, *args, 3), leaves())
    assert torch.autograd.gradgradcheck(lambda *args: call(replay, *args, 3), leaves())


def test_a_graph_is_freed_after_its_backward_pass(replay: ReplayedOperator) -> None:
    warm(replay)
    x, w, bias = leaves()
    out = call(replay, x, w, bias, 3)[0].sum()
    out.backward(retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    out.backward()
    assert torch.equal(x.grad, 2 * first)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_a_tensor_that_was_changed_in_place_is_found(replay: ReplayedOperator) -> None:
    warm(replay)
    x, w, bias = leaves()
    out = call(replay, x, w, bias, 3)[0].sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_saved(replay: ReplayedOperator, mode: Any) -> None:
    x, w, bias = leaves()
    for _ in range(4):
        with mode():
            out, _ = call(replay, x, w, bias, 3)
            assert torch.equal(out, x @ w * 3 + bias)
        assert out.grad_fn is None and out.is_inference() == (mode is torch.inference_mode)
    assert computed == ["forward"] * 2


def test_what_a_call_follows_from_is_in_its_key(replay: ReplayedOperator) -> None:
    with torch.no_grad():
        for more in (2, 3, 2, 3, 2, 3, 2, 3):
            for x in (torch.ones(3, 4), torch.ones(5, 4), torch.ones(4, 3).T, torch.ones(3, 4, dtype=torch.float64)):
                w = torch.full((4, 2), 0.5, dtype=x.dtype)
                for bias in (None, torch.ones(2, dtype=x.dtype)):
                    out, _ = call(replay, x, w, bias, more)
                    assert out.dtype == x.dtype and out.shape == (x.shape[0], 2)
                    assert torch.all(out == 2 * more + (bias is not None))


def test_hooks_on_saved_tensors_and_checkpoints_see_them(replay: ReplayedOperator) -> None:
    warm(replay)
    packed: list[torch.Size] = []
    x, w, bias = leaves()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.clone(), lambda t: t):  # type: ignore[func-returns-value]
        out = call(replay, x, w, bias, 3)[0]
    assert packed == [x.shape, w.shape, out.shape]
    (ours,) = torch.autograd.grad(out.sum(), x)
    again = checkpoint(lambda *args: call(replay, *args, 3)[0], x, w, bias, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.sum(), x)[0], ours)


class Observer(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Own(Tensor):
    pass


@pytest.mark.filterwarnings(FORWARD_MODE)
def test_calls_that_something_observes_are_left_to_python(replay: ReplayedOperator) -> None:
    warm(replay)
    x, w, bias = leaves()
    with Observer():  # type: ignore[no-untyped-call]
        assert replay((x, w, bias, 3)) is None
    assert replay((x.as_subclass(Own), w, bias, 3)) is None
    assert replay((x.detach().to("meta"), w.detach().to("meta"), None, 3)) is None
    assert replay((x.detach().to_sparse(), w, bias, 3)) is None
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        assert replay((dual, w, bias, 3)) is None
    seen: list[object] = []
    torch.func.vmap(lambda row: seen.append(replay((row[None], w, bias, 3))) or row)(x.detach())  # type: ignore[func-returns-value]
    assert seen == [None]
    assert replay((x, w, bias, [[]])) is None


def test_errors_of_python_reach_the_caller(native: Any) -> None:
    def refuse(ctx: Any, g: Tensor, _: Tensor) -> Any:
        raise ValueError("no gradient today")

    replay = ReplayedOperator("RefusedBackward", run, setup_context, refuse)
    replay((*leaves(), 3))
    for _ in range(4):
        out = replay((*leaves(), 3))
        assert out is not None
        with pytest.raises(ValueError, match="no gradient today"):
            out[0].sum().backward()


def test_a_result_that_is_an_input_is_not_replayed(native: Any) -> None:
    replay = ReplayedOperator("SameBackward", lambda x: x, lambda *_: None, lambda ctx, g: g)
    for _ in range(4):
        assert replay((torch.ones(2),)) is None


def test_threads_replay_at_the_same_time(replay: ReplayedOperator) -> None:
    wrong: list[int] = []

    def work(more: int) -> None:
        for _ in range(20):
            x, w, bias = leaves()
            out, _ = call(replay, x, w, bias, more)
            (gx,) = torch.autograd.grad(out.sum(), x)
            if not torch.allclose(out, x @ w * more + bias) or not torch.allclose(gx, more * w.sum(1).expand(3, 4)):
                wrong.append(more)

    threads = [threading.Thread(target=work, args=(more,)) for more in (2, 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_cleared_caches_record_again(replay: ReplayedOperator) -> None:
    warm(replay)
    launch_cache.clear()
    x, w, bias = leaves()
    call(replay, x, w, bias, 3)
    assert computed == ["forward"]


def test_a_function_around_one_operator_is_replayed_whole(replay: ReplayedOperator) -> None:
    entered: list[str] = []

    @replays_one_operator
    def scaled(x: Tensor, w: Tensor, *, more: int, bias: Tensor | None = None, twice: bool = False) -> Tensor:
        entered.append("python")
        out, _ = call(replay, x.to(w.dtype), w, bias, more)
        return out * 2 if twice else out

    for _ in range(5):
        x, w, bias = leaves()
        out = scaled(x, w, more=3, bias=bias)
        assert torch.equal(out, x @ w * 3 + bias)
        assert torch.allclose(torch.autograd.grad(out.sum(), w)[0], x.sum(0)[:, None].expand(4, 2) * 3)
    assert len(entered) == 2
    for twice, dtype in ((True, torch.float64), (False, torch.float32)):  # more than one operator
        entered.clear()
        for _ in range(5):
            x, w, _ = leaves()
            out = scaled(x.to(dtype), w, more=3, twice=twice)
            assert torch.allclose(out, x.to(dtype).double() @ w * 3 * (1 + twice))
        assert len(entered) == 5


def test_the_dispatcher_replays_an_operator(native: Any) -> None:
    device = torch.get_default_device().type.upper()
    register_kernel(product, run, device)
    computed.clear()
    for _ in range(5):
        x, w, bias = leaves()
        with torch.no_grad():
            out, kept = torch.ops.lamina_tests.replayed_product(x, w, bias, 3)
        assert torch.equal(out, x @ w * 3 + bias) and torch.equal(kept, x @ w)
    assert computed == ["forward"] * 2
    assert torch.autograd.gradcheck(lambda *args: torch.ops.lamina_tests.replayed_product(*args, 3), leaves())
    compiled = torch.compile(lambda *args: product(*args, 3)[0] + 1, fullgraph=True, backend="aot_eager")
    x, w, bias = leaves()
    ours = torch.autograd.grad(compiled(x, w, bias).sum(), (x, w, bias))
    theirs = torch.autograd.grad((x @ w * 3 + bias + 1).sum(), (x, w, bias))
    assert all(map(torch.allclose, ours, theirs))
