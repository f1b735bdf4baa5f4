"""Layers called again with the same shapes are replayed from the launch cache, with equal results."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv1d,
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
)
from lamina.accelerate.runtime import launch_cache

pytestmark = pytest.mark.usefixtures("where_kernels_run", "in_python")

LAYERS: dict[str, tuple[Callable[[Impl], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda impl: BlockCirculantLinear(9, 7, 4, impl=impl), (2, 3, 9)),
    "signs": (lambda impl: BlockCirculantLinear(8, 8, 4, bias=False, signs=True, impl=impl), (3, 8)),
    "conv1d": (lambda impl: BlockCirculantConv1d(6, 5, 3, dilation=2, block_size=3, impl=impl), (2, 6, 7)),
    "conv2d": (lambda impl: BlockCirculantConv2d(6, 4, 3, 2, 1, groups=2, block_size=2, impl=impl), (2, 6, 5, 4)),
    "lstm": (lambda impl: BlockCirculantLSTM(5, 7, block_size=4, impl=impl), (3, 2, 5)),
}
CALLS = 4


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[launch_cache.LaunchPlan]:
    """The launch plans that are replayed."""
    found: list[launch_cache.LaunchPlan] = []
    play = launch_cache.LaunchPlan.__call__

    def recorded(plan: launch_cache.LaunchPlan, inputs: list[Tensor]) -> Any:
        found.append(plan)
        return play(plan, inputs)

    monkeypatch.setattr(launch_cache.LaunchPlan, "__call__", recorded)
    return found


def output(layer: nn.Module, x: Tensor) -> Tensor:
    y: Any = layer(x)
    whole: Tensor = y[0] if isinstance(y, tuple) else y
    return whole


def step(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and all gradients."""
    leaves = [x.detach().requires_grad_(), *layer.parameters()]
    y = output(layer, leaves[0])
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


@pytest.mark.parametrize("impl", ["kernel", "materialized", "dense"])
@pytest.mark.parametrize("name", LAYERS)
def test_replayed_steps_equal_recorded_ones(
    name: str, impl: Impl, replayed: list[launch_cache.LaunchPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = LAYERS[name]
    layer = make(impl)
    for _ in range(CALLS):
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape)
        x = torch.randn(shape)
        ours = step(layer, x)
        before = len(replayed)
        with monkeypatch.context() as context:
            context.setattr(launch_cache, "recording", lambda: True)
            plain = step(layer, x)
        assert len(replayed) == before
        assert all(map(torch.equal, ours, plain))
    assert impl == "dense" or len(replayed) >= 2 * (CALLS - 2)


@pytest.mark.parametrize("name", LAYERS)
def test_replayed_forward_passes_are_equal_in_all_grad_modes(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make("kernel")
    for _ in range(CALLS):
        x, found = torch.randn(shape), []
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                found.append(output(layer, x))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
