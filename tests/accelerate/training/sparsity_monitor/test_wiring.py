"""Adaptive layers get the densities of the maps that they read."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate.methods.activation_sparsity.cost import Observed
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, SparseAdaptiveLinear
from lamina.accelerate.training.sparsity_monitor import monitor_of, wire
from lamina.accelerate.training.sparsity_monitor.wiring import maps_read


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), SparseAdaptiveConv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
        SparseAdaptiveLinear(64, 3),
    )  # fmt: skip


X = torch.randn(2, 2, 8, 8)


def test_each_layer_is_found_with_the_module_that_made_its_input() -> None:
    net = model()
    net[1].eval()  # frozen, as in fine-tuning
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert maps_read(net, X, ["3", "6"]) == {"3": "2", "6": "5"}  # the flattened map is the ReLU's memory
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net] == [name != "1" for name in net._modules]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_layer_that_reads_no_module_keeps_its_density() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = SparseAdaptiveLinear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x.relu())
            return y

    net = Net()
    net.layer.density = Observed
    assert wire(net, torch.randn(2, 4), ["layer"]) is None and monitor_of(net) is None
    assert net.layer.density is Observed


def test_layers_follow_what_the_monitor_observes() -> None:
    net, known = model(), Observed(0.25)
    layer: Any = net[3]
    layer.density = lambda: known
    monitor = wire(net, X, ["3"])
    assert monitor is not None and monitor_of(net) is monitor
    assert layer.density() is known  # nothing is observed yet
    seen: list[Tensor] = []
    net[2].register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    for _ in range(2):
        net(X).sum().backward()
    expected = float((seen[0] != 0).float().mean())
    assert layer.density().density == pytest.approx(expected, abs=0.02) and layer.density() is not known
    monitor.detach()
