"""The verb: what is replaced, what is skipped and why, and how a method is written."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.accelerate import CELLS, configuration, convert
from lamina.accelerate.convert import HELD, HOOKS, kept
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.errors import UsageError
from lamina.spec import Method
from lamina.spec.method import METHODS


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8), nn.Linear(8, 2))


def test_every_layer_is_recorded_with_its_reason() -> None:
    net = model()
    converted, record = convert(net, Circulant(block_size=4))
    assert converted is net
    assert record.method == "circulant[block_size=4]"
    assert {layer.layer: layer.refusal for layer in record.layers} == {
        "0": "block size 4 exceeds its 3 input channels",
        "1": "ReLU has no weights",
        "2": "Flatten has no weights",
        "3": None,
        "4": "block size 4 exceeds its 2 output features",
    }
    (replaced,) = record.replaced
    assert (replaced.kind, replaced.parameters_before, replaced.parameters_after) == ("Linear", 264, 72)
    assert isinstance(net[3], BlockCirculantLinear)
    assert net(torch.randn(1, 3, 4, 4)).shape == (1, 2)


def test_where_selects() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    _, record = convert(net, Circulant(block_size=4), where=lambda name, layer: name == "1")
    assert [(layer.layer, layer.refusal) for layer in record.layers] == [("0", "not selected"), ("1", None)]
    assert type(net[0]) is nn.Linear


def test_a_model_that_is_one_layer_comes_back_new() -> None:
    layer, record = convert(nn.Linear(8, 8), Circulant(block_size=4))
    assert isinstance(layer, BlockCirculantLinear)
    assert [(entry.layer, entry.refusal) for entry in record.layers] == [("", None)]


def test_a_layer_used_twice_is_replaced_once() -> None:
    shared = nn.Linear(8, 8)
    net = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    _, record = convert(net, Circulant(block_size=4))
    assert net["a"] is net["b"][0]
    assert [layer.layer for layer in record.replaced] == ["a", "b.0"]


def test_shared_weights_and_hooks_are_left_alone() -> None:
    net = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    net[1].weight = net[0].weight
    net[2].register_forward_hook(lambda *_: None)
    _, record = convert(net, Circulant(block_size=4))
    reasons = [layer.refusal for layer in record.layers]
    assert reasons == [*["its weights are shared with another layer"] * 2, "it has hooks, which a new layer would lose"]


HOOKED = {
    "of gradients": lambda layer: layer.weight.register_hook(lambda gradient: gradient),
    "after accumulation": lambda layer: layer.bias.register_post_accumulate_grad_hook(lambda _: None),
    "of the state dict": lambda layer: layer.register_state_dict_post_hook(lambda *_: None),
    "before loading": lambda layer: layer.register_load_state_dict_pre_hook(lambda *_: None),
    "after loading": lambda layer: layer.register_load_state_dict_post_hook(lambda *_: None),
}


@pytest.mark.parametrize("kind", HOOKED)
def test_a_layer_with_hooks_of_any_kind_stays(kind: str) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    HOOKED[kind](net[0])
    _, record = convert(net, Circulant(block_size=4))
    assert [(one.layer, one.refusal) for one in record.layers if one.refusal] == [("0", HOOKS)]


class Listed(nn.Module):
    """Calls a layer through a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = [self.layer]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.blocks[0](x))  # type: ignore[no-any-return]


def test_a_layer_that_a_list_holds_too_stays() -> None:
    _, record = convert(Listed(), Circulant(block_size=4), example=torch.randn(2, 8))
    assert [(one.layer, one.refusal) for one in record.layers] == [("layer", HELD), ("other", None)]
    assert kept(Listed(), "layer") == HELD and kept(Listed(), "other") is None  # as convolution algorithms ask


def test_identities_are_in_the_mode_of_what_they_replace() -> None:
    net, record = convert(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), Fusion())
    assert record.replaced and not any(module.training for module in net.modules())


def test_unusable_weights_name_their_layer() -> None:
    net = model()
    nn.init.constant_(net[3].weight, float("inf"))
    with pytest.raises(UsageError, match="^3: weights: expected finite"):
        convert(net, Circulant(block_size=4))


def test_weights_that_no_method_can_read_keep_their_layer() -> None:
    layers = {
        "0": (nn.LazyLinear(8), "its weights are not initialized"),
        "1": (nn.Linear(8, 8, device="meta"), "its weights are on the meta device"),
        "2": (nn.Linear(8, 8, dtype=torch.complex64), "its weights are complex"),
        "3": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "its weights are parametrized"),
    }
    net = nn.Sequential(*(layer for layer, _ in layers.values()))
    _, record = convert(net, Circulant(block_size=4))
    assert [layer.layer for layer in record.layers] == [*layers]
    for found, (layer, reason) in zip(record.layers, layers.values(), strict=True):
        assert str(found.refusal).startswith(reason) and net.get_submodule(found.layer) is layer


@pytest.mark.parametrize("config", [None, Circulant, {"block_size": 4}])
def test_what_is_no_configuration(config: object) -> None:
    with pytest.raises(UsageError, match="expected a method's configuration"):
        convert(model(), config)


def test_a_dataclass_of_another_file_is_no_configuration() -> None:
    @dataclass(frozen=True)
    class Other:
        block_size: int = 4

    with pytest.raises(UsageError, match="Other"):
        convert(model(), Other())


def test_written_methods_become_configurations() -> None:
    parsed = configuration(Method.parse("circulant[block_size=16,rescale=true,init=fresh]"))
    assert parsed == Circulant(block_size=16, rescale=True, init="fresh")
    _, record = convert(nn.ReLU(), parsed)
    assert configuration(Method.parse(record.method)) == parsed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("circulant[blocksize=16]", "did you mean 'block_size'"),
        ("circulant[block_size=1000]", "from 2 to 256"),
        ("dense", "expected one of"),
    ],
)
def test_wrong_methods(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        configuration(Method.parse(text))


def test_every_method_but_dense_has_a_cell() -> None:
    assert {*CELLS} == {*METHODS} - {"dense"}


class ByItsWeight(nn.Module):
    """Computes with the weight of one layer itself, and calls the other."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.linear(x, self.own.weight))


def test_layers_that_an_example_does_not_reach_are_left_alone() -> None:
    x = torch.randn(2, 16)
    model, record = convert(ByItsWeight(), Circulant(block_size=4), example=x)
    assert [layer.layer for layer in record.replaced] == ["head"]
    assert record.skipped[0].refusal == "the model computes with its weight itself"
    assert model(x).shape == (2, 16)
    unused = nn.ModuleDict({"used": nn.Linear(16, 16), "unused": nn.Linear(16, 16)})
    unused.forward = lambda x: unused["used"](x)  # type: ignore[method-assign]
    _, record = convert(unused, Circulant(block_size=4), example=x)
    assert record.skipped[0].layer == "unused" and "the example did not reach it" in str(record.skipped[0].refusal)


@pytest.mark.parametrize("config", [Circulant(block_size=4), Eliminated(keep=0.5), WeightOnly()])
def test_layers_that_the_model_reads_and_does_not_call_are_left_alone(config: object) -> None:
    model, record = convert(ByItsWeight(), config)
    assert [layer.layer for layer in record.replaced] == ["head"]
    assert record.skipped[0].refusal == "the model computes with its weight itself"
    assert model(torch.randn(2, 16)).shape == (2, 16)


class Tied(nn.Module):
    """Calls a layer and computes with its weight, too, and reads only the dtype of another."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(self.encoder(x), self.encoder.weight.t())
        return self.head(x.to(self.head.weight.dtype))


@pytest.mark.parametrize("example", [None, torch.randn(2, 16)])
@pytest.mark.parametrize("config", [Circulant(block_size=4), Eliminated(keep=0.5)])
def test_layers_that_the_model_calls_and_reads_are_left_alone(config: object, example: torch.Tensor | None) -> None:
    model, record = convert(Tied(), config, example=example)
    assert [layer.layer for layer in record.replaced] == ["head"]
    assert record.skipped[0].refusal == "the model computes with its weight itself"
    assert model(torch.randn(2, 16)).shape == (2, 16)


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Linear(8, 16), nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True)
        return self.lstm(packed)[0].data  # type: ignore[no-any-return]


@pytest.mark.parametrize("config", [Circulant(block_size=4), Eliminated(keep=0.5)])
def test_layers_of_packed_sequences_are_left_alone(config: object) -> None:
    example = torch.randn(2, 3, 8), torch.tensor([3, 2])
    model, record = convert(Packs(), config, example=example)
    assert [layer.layer for layer in record.replaced] == ["embed"]
    assert "not as dense tensors" in str(record.skipped[0].refusal)
    assert model(*example).shape == (5, 16)


def test_models_that_are_distributed_already_are_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        wrapped = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(16, 16)))
        sharded = nn.Sequential(nn.Linear(16, 16))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.fsdp.fully_shard(sharded, mesh=mesh)
        for model, said in (wrapped, r"model\.0: expected what DistributedDataParallel"), (sharded, "FSDPModule does"):
            with pytest.raises(UsageError, match=said):
                convert(model, Circulant(block_size=4))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("config", [Circulant(block_size=4), Eliminated(keep=0.5), WeightOnly()])
def test_a_transformer_layer_calls_its_converted_layers_in_evaluation_mode_too(config: object) -> None:
    x = torch.randn(2, 5, 16)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model, record = convert(layer, config)
    assert len(record.replaced) == 4
    trained = model.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), trained.detach())
