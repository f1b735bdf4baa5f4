"""What is a layer of a forward pass, and what it is called."""

import pytest
import torch
from torch import Tensor, nn

from lamina.build.models import create
from lamina.build.trace import trace

from .replayed import Residual, replay


def test_functions_between_modules_become_layers() -> None:
    found = trace(Residual(), torch.randn(2, 4, 5, 5))
    kinds = [layer.layer.kind for layer in found.layers]
    assert kinds[:3] == ["convolution", "activation", "add"]
    assert kinds.count("concat") == 2 and kinds[-2:] == ["activation", "linear"]
    assert [layer.name for layer in found.layers][1:3] == ["relu", "add"]
    assert found.layers[-2].name == "relu#2"


def test_edges_name_the_layers_that_made_the_inputs() -> None:
    found = trace(create("resnet10_cifar"), torch.randn(1, 3, 32, 32))
    by_name = {layer.name: layer.layer.inputs for layer in found.layers}
    assert by_name["layer1.0.add"] == ("layer1.0.bn2", "relu")
    assert by_name["layer2.0.add"] == ("layer2.0.bn2", "layer2.0.downsample.1")
    assert by_name["conv1"] == ("input",)


def test_a_write_into_a_part_is_a_new_tensor() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            z = y + 1
            y[:, 0] = z[:, 1]
            y.mul_(3)
            z.copy_(y)
            return self.child(y) + z

    network, x = Writer(), torch.randn(2, 2)
    (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, network(x))


def test_a_network_s_own_hooks_belong_to_their_layers() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    network[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    network[1].register_forward_hook(lambda module, args, output: output + 1)
    found = trace(network, x := torch.randn(5, 3))
    assert [call.name for call in found.calls] == ["0", "1", "2"]
    (result,) = replay(found, x)
    torch.testing.assert_close(result, network(x))


def test_unknown_modules_stay_opaque_but_counted() -> None:
    found = trace(nn.Sequential(nn.GroupNorm(2, 4), nn.PReLU()), torch.randn(2, 4, 3))
    assert [layer.layer.kind for layer in found.layers] == ["opaque", "opaque"]
    assert [layer.parameters for layer in found.layers] == [8, 1]
    assert not found.layers[0].layer.counted


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_modules_are_one_layer() -> None:
    network = nn.Sequential(nn.Linear(3, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    found = trace(network, x := torch.randn(5, 3))
    assert [(call.name, layer.parameters) for call, layer in zip(found.calls, found.layers, strict=True)] == [
        ("0", 16),
        ("1", 20),
    ]
    (result,) = replay(found, x)
    torch.testing.assert_close(result, network(x))
