"""Tracing finds every layer, and running the calls one by one gives what the network gives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.build.models import create
from lamina.build.trace import Trace, trace
from lamina.errors import UnsupportedError


def replay(found: Trace, *inputs: Tensor) -> list[Tensor]:
    values = dict(zip(found.inputs, inputs, strict=True))
    for call in found.calls:
        results = call.run([values[n] for n in call.inputs])
        values.update(zip(call.outputs, results, strict=True))
    return [values[n] for n in found.outputs]


class Residual(nn.Module):
    """Functions between modules: an in-place add, a concatenation, a chunk, a parameter used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.convolution(x))
        y += x
        y = y * self.scale
        y = torch.cat([y, F.gelu(y)], 1)
        first, second = y.chunk(2, 1)
        pooled = torch.flatten(F.adaptive_avg_pool2d(torch.cat([first, second], 1), 1), 1)
        return self.head(self.relu(pooled))


def test_functions_between_modules_become_layers() -> None:
    found = trace(Residual(), torch.randn(2, 4, 5, 5))
    kinds = [layer.layer.kind for layer in found.layers]
    assert kinds[:3] == ["convolution", "activation", "add"]
    assert kinds.count("concat") == 2 and kinds[-2:] == ["activation", "linear"]
    assert [layer.name for layer in found.layers][1:3] == ["relu", "add"]
    assert found.layers[-2].name == "relu#2"


def test_replaying_the_calls_equals_the_network() -> None:
    torch.manual_seed(0)
    network, x = Residual(), torch.randn(2, 4, 5, 5)
    expected = network(x.clone())
    found = trace(network, x)
    before = x.clone()
    (result,) = replay(found, x)
    torch.testing.assert_close(result, expected)
    assert torch.equal(x, before), "a replayed in-place layer overwrote the network's input"


@pytest.mark.parametrize("name", ["lenet5", "cifarnet", "tdnn", "lstm", "gpt", "vit_tiny", "resnet10_cifar"])
def test_zoo_replays(name: str) -> None:
    from lamina.build.models import ZOO

    torch.manual_seed(0)
    entry, network = ZOO[name], create(name).eval()
    shape = (1, *entry.input)
    x = torch.randint(0, entry.classes, shape) if entry.kind == "tokens" else torch.randn(shape)
    with torch.no_grad():
        expected = network(x)
        (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, expected)


def test_edges_name_the_layers_that_made_the_inputs() -> None:
    found = trace(create("resnet10_cifar"), torch.randn(1, 3, 32, 32))
    by_name = {layer.name: layer.layer.inputs for layer in found.layers}
    assert by_name["layer1.0.add"] == ("layer1.0.bn2", "relu")
    assert by_name["layer2.0.add"] == ("layer2.0.bn2", "layer2.0.downsample.1")
    assert by_name["conv1"] == ("input",)


def test_tracing_computes_nothing() -> None:
    # 4 TB of activations: possible only on tensors without memory.
    found = trace(nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU()), torch.empty(1, 1, 1, 1).expand(1024, 1, 4096, 4096))
    assert found.layers[-1].output == (1024, 64, 4096, 4096)


def test_parameters_and_multiply_adds_are_the_modules_own() -> None:
    network = create("lenet5")
    found = trace(network, torch.randn(1, 1, 28, 28))
    assert sum(layer.parameters for layer in found.layers) == sum(p.numel() for p in network.parameters())


def test_data_dependent_paths_are_rejected() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="could not be traced"):
        trace(Branch(), torch.randn(2, 2))


def test_writing_into_a_part_is_rejected() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            y[:, 0] = 0
            return y

    with pytest.raises(UnsupportedError, match="writes into part"):
        trace(Writer(), torch.randn(2, 2))


def test_wrong_input_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedError, match=r"LeNet5? could not be traced on input \(1, 7, 28, 28\)"):
        trace(create("lenet5"), torch.randn(1, 7, 28, 28))


def test_unknown_modules_stay_opaque_but_counted() -> None:
    found = trace(nn.Sequential(nn.GroupNorm(2, 4), nn.PReLU()), torch.randn(2, 4, 3))
    assert [layer.layer.kind for layer in found.layers] == ["opaque", "opaque"]
    assert [layer.parameters for layer in found.layers] == [8, 1]
    assert not found.layers[0].layer.counted
