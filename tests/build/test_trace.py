"""Tracing finds every layer, and running the calls one by one gives what the network gives."""

import logging
from dataclasses import dataclass

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


def test_data_dependent_paths_are_followed_for_the_inputs() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x + torch.rand(1))
            return x.exp() if x.square().sum() > 0 else x.sin()

    network, x = Branch(), torch.randn(4, 2)
    state, mean = torch.get_rng_state(), network.norm.running_mean.clone()
    found = trace(network, x)
    assert [call.name for call in found.calls][-1] == "exp"
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(network.norm.running_mean, mean)
    with pytest.raises(UnsupportedError, match="could not be traced"), torch.device("meta"):
        trace(Branch(), torch.empty(2, 2))


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


def test_modules_are_as_before_a_trace() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.last = 0, None
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.calls, self.last = self.calls + 1, x
            self.mean = self.mean + x.mean(0)
            return x - self.mean

    network = Stateful()
    trace(network, torch.randn(4, 3))
    assert (network.calls, network.last) == (0, None) and torch.equal(network.mean, torch.zeros(3))


def test_layers_that_are_made_in_the_first_pass_are_made_first() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body: nn.Module | None = None
            self.head = nn.LazyLinear(2)

        def forward(self, x: Tensor) -> Tensor:
            if self.body is None:
                self.body = nn.Linear(x.shape[1], 4)
            return self.head(self.body(x))

    network, x = Late(), torch.randn(5, 3)
    found = trace(network, x)
    assert [layer.parameters for layer in found.layers] == [16, 10]
    (result,) = replay(found, x)
    torch.testing.assert_close(result, network(x))


@dataclass
class Output:
    scores: Tensor
    note: str


def test_tensors_in_dataclasses_and_layers_of_weights_only_are_found() -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2))

        def forward(self, x: Tensor) -> Output:
            return Output(x @ torch.cat([torch.sigmoid(self.weight).softmax(dim=0), self.weight], 1), "raw")

    network, x = Scores(), torch.randn(5, 3)
    (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, network(x).scores)


def test_wrong_input_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedError, match=r"LeNet5? could not be traced on input \(1, 7, 28, 28\)"):
        trace(create("lenet5"), torch.randn(1, 7, 28, 28))


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


def test_a_network_that_makes_layers_in_every_pass_is_refused() -> None:
    class Restless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.body = nn.Linear(x.shape[1], 4)
            return self.body(x)

    with pytest.raises(UnsupportedError, match="makes layers in every forward pass"):
        trace(Restless(), torch.randn(5, 3))


def test_gradients_that_a_network_requests_itself_are_followed() -> None:
    class Energy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = (x * 1).requires_grad_()
            return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0]

    network, x = Energy(), torch.randn(5, 3)
    (result,) = replay(trace(network, x), x)
    torch.testing.assert_close(result, x.cos())


def test_batch_norm_over_one_value_suggests_a_larger_batch() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    with pytest.raises(UnsupportedError, match=r"Expected more than 1 value per channel.*set a larger --batch-size"):
        trace(network, torch.randn(1, 3, 8, 8))
    assert trace(network, torch.randn(2, 3, 8, 8)).layers


def test_no_traceback_of_a_failed_operation_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])

    class Transposed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(2, 3)

    with pytest.raises(UnsupportedError, match="Dimension out of range"), torch.device("meta"):
        trace(Transposed(), torch.empty(2, 3))
    with pytest.raises(UnsupportedError, match="Dimension out of range"):
        trace(Transposed(), torch.empty(2, 3))
    assert not caplog.records


def test_hooks_and_lists_of_the_first_forward_pass_are_removed_with_their_flag() -> None:
    class Collects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 2)])
            self.ready, self.states = False, [0]

        def forward(self, x: Tensor) -> Tensor:
            if not self.ready:
                self.ready = True
                for layer in self.layers:
                    layer.register_forward_hook(lambda module, inputs, output: self.states.append(1))
            for layer in self.layers:
                x = layer(x)
            return x

    network = Collects()
    trace(network, torch.randn(2, 4))
    assert not network.ready and network.states == [0]
    network(torch.randn(2, 4))
    assert network.states == [0, 1, 1]


def _scale(size: int) -> Tensor:
    return torch.sqrt(torch.tensor(size, dtype=torch.float))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_constant_of_torchscript_has_its_value() -> None:
    scale = torch.jit.script(_scale)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) / scale(x.size(-1))

    (_, division) = trace(Scaled(), torch.randn(2, 4)).calls
    (result,) = division.run([torch.full((2, 4), 6.0)])
    assert type(result) is Tensor and result.tolist() == [[3.0] * 4] * 2
