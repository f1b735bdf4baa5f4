"""Activations that circulant layers compute: which of them, and that results stay."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation, fuse_activations
from lamina.accelerate.methods.circulant.convert import replace
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear

CIRCULANT = lamina.Circulant(4, signs=True)


def circulant(model: nn.Module) -> nn.Module:
    """The model with every linear layer and convolution replaced, and its ReLUs."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, replace(module, CIRCULANT))
    return model


class Net(nn.Module):
    """Two layers and what is between them."""

    def __init__(self, between: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)
        self.idle, self.between = nn.Identity(), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))  # type: ignore[no-any-return]


def taps(net: Net, x: Tensor) -> Tensor:
    y = net.relu(x)
    return y + 0.1 * x  # type: ignore[no-any-return]


def undecided(net: Net, x: Tensor) -> Tensor:
    return net.relu(x) if x.sum() > -1e9 else x  # type: ignore[no-any-return]


def fused_in(model: nn.Module) -> dict[str, str]:
    """By ReLU, the layer that computes it, after `fuse_activations`."""
    fuse_activations(model)
    return {name: one.layer for name, one in model.named_modules() if isinstance(one, FusedActivation)}


STAYS = {
    "another reader": taps,
    "a function": lambda net, x: F.relu(x),
    "called twice": lambda net, x: net.relu(net.relu(x) - 0.1),
    "another activation first": lambda net, x: net.relu(F.gelu(x)),
    "not traceable": undecided,
}
FUSED = {
    "directly": lambda net, x: net.relu(x),
    "behind an identity": lambda net, x: net.relu(net.idle(x)),
    "read twice": lambda net, x: (lambda y: y + y.sin())(net.relu(x)),
}


@pytest.mark.parametrize("case", [*STAYS, *FUSED])
def test_only_a_relu_that_alone_reads_the_layer_is_fused(case: str) -> None:
    plain = circulant(Net((STAYS | FUSED)[case]))
    net, x = copy.deepcopy(plain), torch.randn(5, 8, requires_grad=True)
    fused = fused_in(net)
    assert fused == ({"relu": "first"} if case in FUSED else {})
    assert type(net.relu) is (FusedActivation if case in FUSED else nn.ReLU)
    assert net.first.activation == ("relu" if case in FUSED else None)
    assert net.last.activation is None
    ours, theirs = (torch.autograd.grad(one(x).sin().sum(), [x, *one.parameters()]) for one in (net, plain))
    torch.testing.assert_close(ours, theirs)
    assert fused_in(net) == fused  # nothing is left


def test_children_that_a_loop_reads_stay() -> None:
    class Style(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1), nn.ReLU()
            )

        def forward(self, x: Tensor) -> list[Tensor]:
            found = []
            for index, layer in enumerate(self.features):
                x = layer(x)
                if index == 2:
                    found.append(x)
            return [*found, x]

    net = circulant(Style())
    assert fused_in(net) == {"features.1": "features.0"}
    conv = net.features[0]  # type: ignore[index]
    assert isinstance(conv, BlockCirculantConv2d) and "activation=relu" in repr(conv)


@pytest.mark.parametrize("part", ["first", "relu"])
def test_hooks_are_still_called(part: str) -> None:
    net, calls = circulant(Net(FUSED["directly"])), []
    net.get_submodule(part).register_forward_hook(lambda *args: calls.append(args))
    assert fused_in(net) == {}
    net(torch.randn(2, 8))
    assert len(calls) == 1


@pytest.mark.parametrize("case", [*STAYS, *FUSED])
def test_a_layer_that_keeps_spectra_on_the_chip_computes_the_relu_of_its_inputs(case: str) -> None:
    net = circulant(Net((STAYS | FUSED)[case]))
    net.last.impl = "fused_rows"  # type: ignore[union-attr, assignment]
    reads = case in ("directly", "behind an identity", "another activation first")
    assert fused_in(net) == ({"relu": "last"} if reads else {"relu": "first"} if case in FUSED else {})
    plain = copy.deepcopy(net)
    net.last.impl = plain.last.impl = "reference"  # type: ignore[union-attr, assignment]
    assert net.last.input_activation == ("relu" if reads else None)
    if reads:
        assert "input_activation=relu" in repr(net.last)
        plain.last.input_activation, plain.relu = None, nn.ReLU()  # type: ignore[union-attr, assignment]
        dense = net.last.to_dense()  # type: ignore[union-attr, operator]
        x = torch.randn(4, 12)
        torch.testing.assert_close(dense(x), net.last(x))
    x = torch.randn(5, 8, requires_grad=True)
    ours, theirs = (torch.autograd.grad(one(x).sin().sum(), [x, *one.parameters()]) for one in (net, plain))
    torch.testing.assert_close(ours, theirs)


def test_a_relu_behind_no_circulant_layer_is_fused_too() -> None:
    net = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    x = torch.randn(5, 8)
    net = circulant(net)  # type: ignore[assignment]
    plain = copy.deepcopy(net)
    net[2].impl = "fused_rows"  # type: ignore[assignment]
    assert fused_in(net) == {"1": "2"}
    net[2].impl = "reference"  # type: ignore[assignment]
    torch.testing.assert_close(net(x), plain(x))


class MLP(nn.Module):
    """The feed-forward part of a transformer, which reads its activation once."""

    def __init__(self, act: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.act, self.drop, self.fc2 = nn.Linear(8, 16), act, nn.Dropout(dropout), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(self.act(self.fc1(x))))  # type: ignore[no-any-return]


def of_rows(model: nn.Module) -> nn.Module:
    """The circulant model, whose linear layers keep spectra on the chip."""
    for layer in (converted := circulant(model)).modules():
        if isinstance(layer, BlockCirculantLinear):
            layer.impl = "fused_rows"
    return converted


def assert_same_results(model: nn.Module, plain: nn.Module, *inputs: Tensor) -> None:
    """Outputs and gradients, both by the definition."""
    for one in (model, plain):
        for layer in one.modules():
            if isinstance(layer, BlockCirculantLinear):
                layer.impl = "reference"
    ours, theirs = (torch.autograd.grad(one(*inputs).sin().sum(), [*one.parameters()]) for one in (model, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("act", "fused"), [(nn.GELU(), "gelu"), (nn.GELU("tanh"), "gelu_tanh"), (nn.ReLU(), "relu"), (nn.SiLU(), None)]
)
def test_the_gelu_of_inputs_is_fused_also_behind_dropout_of_nothing(act: nn.Module, fused: str | None) -> None:
    net = of_rows(nn.Sequential(MLP(act), MLP(copy.deepcopy(act))))
    plain = copy.deepcopy(net)
    assert fused_in(net) == ({"0.act": "0.fc2", "1.act": "1.fc2"} if fused else {})
    assert net[0].fc2.input_activation == fused  # type: ignore[index, union-attr]
    assert_same_results(net, plain, torch.randn(5, 8))
    assert fused_in(of_rows(nn.Sequential(MLP(copy.deepcopy(act), dropout=0.1)))).get("0.act") != "0.fc2"


@pytest.mark.parametrize(("act", "fused"), [(nn.GELU(), {}), (nn.ReLU(), {"1": "2"})])
def test_the_gelu_of_large_blocks_stays(act: nn.Module, fused: dict[str, str]) -> None:
    layers = (BlockCirculantLinear(128, 128, 128, impl="fused_rows") for _ in range(2))
    assert fused_in(nn.Sequential(next(layers), act, next(layers))) == fused


def test_the_gelu_of_outputs_stays() -> None:
    net = circulant(MLP(nn.GELU()))  # whose layers keep spectra in memory
    assert fused_in(net) == {}


class Untraceable(nn.Module):
    """Decides by values, so only its parts are traced."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x) if x.sum() > -1e9 else x
        return x


def test_parts_of_a_network_that_cannot_be_traced_are_fused() -> None:
    net = of_rows(Untraceable(MLP(nn.GELU()), Untraceable(MLP(nn.GELU()))))
    plain = copy.deepcopy(net)
    assert fused_in(net) == {"parts.0.act": "parts.0.fc2", "parts.1.parts.0.act": "parts.1.parts.0.fc2"}
    assert_same_results(net, plain, torch.randn(5, 8))


def test_parts_that_share_a_module_or_whose_children_are_called_from_outside_stay() -> None:
    net = of_rows(Untraceable(MLP(nn.GELU()), MLP(nn.GELU())))
    net.parts[1].fc2 = net.parts[0].fc2  # type: ignore[index, union-attr]
    assert fused_in(net) == {}
    tied = MLP(nn.GELU())
    assert fused_in(of_rows(Untraceable(tied, tied, MLP(nn.GELU())))) == {"parts.2.act": "parts.2.fc2"}
    assert fused_in(of_rows(Untraceable(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))))) == {}


def test_dense_layers_keep_their_relu() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Conv1d(8, 8, 1))
    assert fused_in(net) == {} and type(net[1]) is nn.ReLU


def test_only_selected_relus_are_fused() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    net, _ = lamina.convert(net, CIRCULANT, lambda name, _: name in "012")  # type: ignore[assignment]
    assert [type(one) for one in net] == [BlockCirculantLinear, FusedActivation, BlockCirculantLinear, nn.ReLU]


def test_conversion_fuses_and_says_so() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU())
    plain = copy.deepcopy(net)
    net, record = lamina.convert(net, CIRCULANT)  # type: ignore[assignment]
    reasons = {layer.layer: layer.refusal for layer in record.layers}
    assert reasons == {
        "0": None, "1": "0 computes it", "2": "block size 4 exceeds its 3 output features", "3": "ReLU has no weights",
    }  # fmt: skip
    layer = net[0]
    assert isinstance(layer, BlockCirculantLinear)
    dense, x = layer.to_dense(), torch.randn(3, 8)
    assert isinstance(dense, nn.Sequential) and type(dense[1]) is nn.ReLU
    torch.testing.assert_close(layer(x), dense(x))
    assert net.state_dict().keys() >= plain.state_dict().keys()


@pytest.mark.parametrize("make", [
    lambda: BlockCirculantLinear(8, 8, 4, activation="relu"),
    lambda: BlockCirculantConv2d(8, 8, 1, block_size=4, activation="relu"),
])  # fmt: skip
def test_layers_of_earlier_versions_have_no_activation(make: Callable[[], nn.Module]) -> None:
    layer = make()
    x = torch.randn(2, 8, *([3, 3] if isinstance(layer, BlockCirculantConv2d) else []))
    assert (layer(x) >= 0).all()
    del layer.activation, layer.input_activation
    assert (layer(x) < 0).any() and "activation" not in repr(layer)
