"""Networks with residual sums, gates, strided shortcuts and concatenations, composed of pruned layers and folded.

Each computes forward and backward what the dense network with masked weights does, in every implementation.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.config import Impl
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.pipeline.deft.composition import candidates, compose

RATIOS = [0.75, 0.5, 0.25]


class Gate(nn.Module):
    """Squeeze and excitation through as few channels as are usual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.gate, self.shortcut = Gate(outputs), nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(self.gate(y) + self.shortcut(x))


class Hostile(nn.Module):
    """A stem of three channels, of which one may remain, residual blocks, and branches of a shared producer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
        self.left, self.right = nn.Conv2d(12, 6, 1, 2), nn.Conv2d(12, 6, 3, 2, 1)
        self.grouped, self.joined, self.head = (
            nn.Conv2d(12, 12, 3, 2, 1, groups=4),
            nn.Conv2d(24, 4, 1),
            nn.Linear(4, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        x = torch.cat([self.left(x), self.right(x), self.grouped(x)], 1)
        return self.head(self.joined(torch.relu(x)).mean((2, 3)))


def masked(model: nn.Module) -> nn.Module:
    """Each pruned layer as the dense one with zeros."""
    result = copy.deepcopy(model)
    for name, module in model.named_modules():
        if isinstance(module, Indexed):
            result.set_submodule(name, module.to_dense())  # type: ignore[operator]
    return result


def passes(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The outputs, and the gradients of the input, the norms and the biases, which no pruning changes."""
    x = x.detach().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    assert x.grad is not None
    names = ("head.bias", "joined.bias", "blocks.1.gate.expand.bias", "blocks.0.norm2.weight", "left.bias")
    grads = [model.get_parameter(name).grad for name in names]
    return [y, x.grad, *(grad for grad in grads if grad is not None)]


@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")  # of Triton's interpreter
@pytest.mark.parametrize("ratio", [0.25, None])
@pytest.mark.parametrize("folding", [False, True])
@pytest.mark.parametrize(
    ("impl", "channels_last"), [("gather", False), ("swap", True), ("pack", False), ("kernel", True)]
)
def test_hostile_networks(impl: Impl, channels_last: bool, folding: bool, ratio: float | None) -> None:
    """Kernels compute in float32, all else in float64; without a ratio each layer has its own."""
    if impl in ("pack", "kernel"):
        pytest.importorskip("triton")
    dense = Hostile().eval()
    found = candidates(dense, Eliminated(recovery="scale", impl=impl), RATIOS, [torch.randn(8, 3, 12, 12)])
    assert [name for name in found.refusals if "norm" not in name] == ["grouped"]
    choice = {
        name: ratio if ratio in row else list(row)[number % len(row)]
        for number, (name, row) in enumerate(found.variants.items())
    }
    wide = impl not in ("pack", "kernel")
    expected_model = masked(compose(dense, found.variants, choice, folding=False)[0]).double().train()
    model: Any = compose(dense, found.variants, choice, folding)[0].train()
    x = torch.randn(3, 3, 12, 12)
    if channels_last:
        x, model = x.contiguous(memory_format=torch.channels_last), model.to(memory_format=torch.channels_last)
    got = passes(model.double(), x.double()) if wide else passes(model, x)
    bound = 1e-9 if wide else 2e-3
    for mine, wanted in zip(got, passes(expected_model, x.double()), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=bound, atol=bound * float(wanted.detach().abs().max()))
