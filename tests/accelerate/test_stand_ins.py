"""Stand-ins compute what the modules do that they stand for, and go where no method needs them."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import lamina
from lamina.accelerate.stand_ins import ACTIVATIONS, restore, standardize
from lamina.errors import UsageError
from lamina.pipeline.deft.recipe_files import Origin, save
from lamina.record import Selection

CIRCULANT = lamina.Circulant(block_size=4)


class Conv1D(nn.Module):
    """As in Transformers: a linear layer with transposed weights."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


Conv1D.__module__ = "transformers.pytorch_utils"


class NewGELUActivation(nn.Module):
    """As in Transformers."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


NewGELUActivation.__module__ = "transformers.activations"


class GptMlp(nn.Module):
    """The part of a GPT-2 block that has a GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.act, self.c_proj = Conv1D(32, 8), NewGELUActivation(), Conv1D(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class Initialised(nn.Linear):
    """A subclass that computes what its base does."""

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class Scaled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shown(nn.Conv2d):
    """A convolution that computes by another function."""

    def _conv_forward(self, *args: Any) -> Tensor:
        return -super()._conv_forward(*args)


def test_a_gpt_block_converts() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(GptMlp()), torch.randn(2, 3, 8)
    own: Any = model[0]
    modules, expected = dict(model.named_modules()), model(x)
    torch.testing.assert_close(standardize(model)(x), expected)
    assert [type(own.c_fc), type(own.act), type(own.c_proj)] == [nn.Linear, nn.GELU, nn.Linear]
    assert dict(restore(model).named_modules()) == modules
    model, record = lamina.convert(model, CIRCULANT, example=x)
    assert [one.layer for one in record.replaced] == ["0.c_fc", "0.c_proj"]
    assert own.act.approximate == "tanh"  # which a kernel of the next layer may compute
    assert model(x).shape == expected.shape


def test_gradients_reach_what_the_stand_in_of_transposed_weights_has() -> None:
    layer, x = Conv1D(4, 8), torch.randn(3, 8)
    ours: Any = standardize(layer)
    ours(x).sum().backward()
    layer(x).sum().backward()
    torch.testing.assert_close(ours.weight.grad, layer.weight.grad.t())  # type: ignore[union-attr]
    assert ours.bias is layer.bias


def test_a_model_of_which_nothing_is_replaced_keeps_its_activations() -> None:
    model = GptMlp()
    before = dict(model.named_modules())
    lamina.convert(model, CIRCULANT, lambda name, _: False)
    assert dict(model.named_modules()) == before


@pytest.mark.parametrize("layer", [Scaled(8, 8), Shown(8, 8, 1), parametrizations.weight_norm(nn.Linear(8, 8))])
def test_what_computes_something_else_stays(layer: nn.Module) -> None:
    assert standardize(layer) is layer
    assert not lamina.convert(nn.Sequential(layer), CIRCULANT)[1].replaced


def test_a_subclass_that_computes_the_same_is_replaced() -> None:
    layer, x = Initialised(8, 8), torch.randn(3, 8)
    assert type(standardize(layer)) is nn.Linear and restore(standardize(layer)) is layer
    model, record = lamina.convert(nn.Sequential(layer), CIRCULANT)
    assert [one.kind for one in record.replaced] == ["Linear"]
    torch.testing.assert_close(model(x), layer(x))  # all ones are circulant


def test_shared_weights_and_hooks_keep_their_modules() -> None:
    model = nn.Sequential(Conv1D(8, 8), Conv1D(8, 8), Conv1D(8, 8))
    first, second, third = model
    second.weight = first.weight
    third.register_forward_hook(lambda *_: None)
    _, record = lamina.convert(model, CIRCULANT)
    assert not record.replaced and list(model) == [first, second, third]


def test_one_module_at_two_places_has_one_stand_in() -> None:
    one = Conv1D(8, 8)
    model = nn.ModuleList([one, one])
    standardize(model)
    assert model[0] is model[1] and type(model[0]) is nn.Linear


def test_only_named_layers_are_replaced() -> None:
    model = nn.ModuleDict({"a": Conv1D(8, 8), "b": nn.MultiheadAttention(8, 2), "c": Conv1D(8, 8)})
    standardize(model, ["c", "b.in_proj"])
    assert [type(one).__name__ for one in model.values()] == ["Conv1D", "UnpackedAttention", "Linear"]


@pytest.mark.parametrize("name", ["transformers.activations.NewGELUActivation", "timm.layers.activations.GELU"])
def test_activations_by_the_names_of_their_classes(name: str) -> None:
    assert isinstance(ACTIVATIONS[name](), nn.GELU)


@pytest.mark.parametrize("config", [CIRCULANT, lamina.WeightOnly(), lamina.Eliminated(keep=0.5)])
def test_a_saved_network_loads(tmp_path: Any, config: Any) -> None:
    dense, x = nn.Sequential(GptMlp(), GptMlp()).eval(), torch.randn(2, 8)
    model, record = lamina.convert(copy.deepcopy(dense), config, lambda name, _: name.startswith("1."))
    methods = {one.layer: (one.method, ()) for one in record.replaced}
    save(tmp_path, model, dense, Origin("mine", None, None), "fp32", {}, methods)
    loaded: Any = lamina.load(tmp_path, copy.deepcopy(dense))
    torch.testing.assert_close(loaded(x), model(x))
    assert type(loaded[0].c_fc) is Conv1D and len(methods) == 2


def test_a_selection_keeps_the_networks_own_modules_where_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["lamina.accelerate.convert"]
    monkeypatch.setattr(module, "select_layer", lambda dense, *_: (Selection("dense", "slower", {}, "eager"), dense))
    model = nn.Sequential(GptMlp())
    before = dict(model.named_modules())
    model, record = lamina.convert(model, CIRCULANT, example=torch.randn(2, 8), select="measure")
    assert {one.layer for one in record.skipped if one.selection is not None} == {"0.c_fc", "0.c_proj"}
    assert not record.replaced and dict(model.named_modules()) == before


@pytest.mark.parametrize("example", [None, torch.randn(2, 5)])
def test_an_error_leaves_the_networks_own_modules(example: Tensor | None) -> None:
    model = nn.Sequential(GptMlp(), nn.TransformerEncoderLayer(8, 2, 16))
    before = dict(model.named_modules())
    with pytest.raises(UsageError, match="example"):
        lamina.convert(model, CIRCULANT, example=example, select="measure")
    assert dict(model.named_modules()) == before
