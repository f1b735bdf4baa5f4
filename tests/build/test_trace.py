"""Tracing finds every layer, and running the calls one by one gives what the network gives."""

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lamina.build.models import create
from lamina.build.trace import trace
from lamina.errors import UnsupportedError

from .replayed import replay


def test_tracing_computes_nothing() -> None:
    # 4 TB of activations: possible only on tensors without memory.
    found = trace(nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU()), torch.empty(1, 1, 1, 1).expand(1024, 1, 4096, 4096))
    assert found.layers[-1].output == (1024, 64, 4096, 4096)


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


def test_wrong_input_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedError, match=r"LeNet5? could not be traced on input \(1, 7, 28, 28\).*--input"):
        trace(create("lenet5"), torch.randn(1, 7, 28, 28))


def test_a_network_that_makes_layers_in_every_pass_is_refused() -> None:
    class Restless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.body = nn.Linear(x.shape[1], 4)
            return self.body(x)

    with pytest.raises(UnsupportedError, match="makes layers in every forward pass"):
        trace(Restless(), torch.randn(5, 3))


def test_a_network_that_no_hook_may_look_into_is_one_layer() -> None:
    class PerSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(torch.func.grad(lambda one: self.body(one).sum()))(x) * x

    network, x = PerSample(), torch.randn(5, 3)
    found = trace(network, x)
    assert [(layer.name, layer.parameters) for layer in found.layers] == [("persample", 4)]
    assert "TensorWrapper" in found.whole and not trace(nn.Linear(3, 1), x).whole
    (result,) = replay(found, x)
    torch.testing.assert_close(result, network(x))


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


def test_float_inputs_of_an_embedding_are_refused_with_what_to_give() -> None:
    with pytest.raises(UnsupportedError, match=r"Long, Int.*--input tokens=int64:128"):
        trace(nn.Embedding(10, 4), torch.zeros(1, 7))


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


@torch.jit.ignore  # type: ignore[untyped-decorator]
def _shown(x: Tensor) -> Tensor:
    SEEN.append(type(x))
    return x


def _doubled(x: Tensor) -> Tensor:
    return _shown(x) * 2


SEEN: list[type] = []


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_torchscript_never_sees_tensors_without_memory() -> None:
    """Its fused kernels read their data pointer, which makes a GPU unusable."""

    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _doubled(x)

    class Calls(nn.Module):
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.function, self.head = function, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.function(x))

    SEEN.clear()
    for function in (torch.jit.script(_doubled), torch.jit.script(Doubles())):
        network = Calls(function)
        assert trace(network, torch.randn(2, 4)).calls[-1].name == "head"
        assert {*SEEN} == {Tensor}
        assert torch.equal(network(torch.ones(2, 4)), network.head(torch.full((2, 4), 2.0)))


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


def test_a_constant_of_a_function_that_is_not_seen_has_its_value() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():  # as code in C++ is
                scale = torch.tensor(4.0).sqrt()
            return x / scale

    (division,) = trace(Scaled(), torch.randn(2, 4)).calls
    (result,) = division.run([torch.full((2, 4), 6.0)])
    assert type(result) is Tensor and result.tolist() == [[3.0] * 4] * 2
