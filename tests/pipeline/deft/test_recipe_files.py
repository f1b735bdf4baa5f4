"""Recipes: what is loaded is what was saved, bit for bit; what does not fit is refused with what is wrong."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lamina
from lamina import build, recipes
from lamina.accelerate import convert
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.methods.weight_only.config import FORMATS
from lamina.build.models import create
from lamina.errors import LaminaError, UsageError
from lamina.pipeline import find
from lamina.pipeline.deft.recipe_files import RECIPE, WEIGHTS, Origin, how_to_load, read_recipe, save

LENET = Origin("lenet5", 10, None)


def unchanged(path: Path, model: nn.Module, dense: nn.Module, x: Tensor, precision: Any = "fp32") -> nn.Module:
    """Save and load a model of our own making, and hold both to be the same to the last bit."""
    origin = Origin("somewhere:else", None, None)
    model = build.to_precision(model.eval(), precision, torch.device("cpu"), "nchw")
    save(path, model, dense, origin, precision, {})
    loaded = lamina.load(path, copy.deepcopy(dense))
    before, after = model.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    assert all(before[name].dtype == after[name].dtype for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [type(module) for module in model.modules()] == [type(module) for module in loaded.modules()]
    assert not any(module.training for module in loaded.modules())
    x = x.to(next(t for t in before.values() if t.is_floating_point() and t.dim()).dtype)
    first, second = model(x), loaded(x)
    pairs = zip(first, second, strict=True) if isinstance(first, tuple) else [(first, second)]
    assert all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
    return loaded


@pytest.fixture
def lenet() -> nn.Module:
    torch.manual_seed(0)
    return create("lenet5", 10).eval()


def small(network: nn.Module) -> nn.Module:
    """Half of each layer's inputs, folded, with eight bits for what is plain after that."""
    model, _ = convert(copy.deepcopy(network), Eliminated(keep=0.5), lambda name, _: name != "features.0")
    model, _ = fold(model)
    return convert(model, WeightOnly("e3m4"))[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    path = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    dense = create("lenet5", 10).eval()
    model = small(dense)
    save(path, model, dense, LENET, "fp32", {"a": 1})
    return path, model


@pytest.fixture
def folder(saved: tuple[Path, nn.Module], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved[0], tmp_path / "saved"))


def test_a_network_of_the_zoo_needs_nothing_else(saved: tuple[Path, nn.Module], folder: Path) -> None:
    x = torch.randn(3, 1, 28, 28)
    expected = saved[1](x)
    for path in (folder, str(folder), folder / RECIPE):
        assert torch.equal(lamina.load(path)(x), expected)
    assert how_to_load(folder) == f"lamina.load({str(folder)!r}) gives the network back"
    assert {path.name for path in folder.iterdir()} == {RECIPE, WEIGHTS}
    assert read_recipe(folder).facts == {"a": 1}


def test_a_described_network_needs_nothing_else(tmp_path: Path) -> None:
    target, _ = find(str(recipes.find("lenet5").path))
    assert target.network is not None
    dense = target.make(None).eval()
    model, record = convert(copy.deepcopy(dense), Eliminated(keep=0.5))
    assert record.replaced
    save(tmp_path, model, dense, Origin(target.name, None, target.network), "fp32", {})
    x = torch.randn(2, *target.inputs[0].shape)
    assert torch.equal(lamina.load(tmp_path)(x), model(x))


@pytest.mark.parametrize("replaced", ["", "0", "2", "02"])
def test_a_layer_under_two_names_may_be_replaced_under_one(tmp_path: Path, replaced: str) -> None:
    shared, x = nn.Linear(16, 16), torch.randn(3, 16)
    dense = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 4)).eval()
    model = copy.deepcopy(dense)
    pruned, _ = convert(copy.deepcopy(shared), Eliminated(keep=0.5))
    for name in replaced:
        model[int(name)] = pruned
    save(tmp_path, model, dense, Origin("mine", None, None), "fp32", {})
    loaded: Any = lamina.load(tmp_path, copy.deepcopy(dense))
    assert torch.equal(loaded(x), model(x))  # a layer that is new under both names is one for each then
    assert [type(loaded[i]) is nn.Linear for i in (0, 2)] == [name not in replaced for name in "02"]


@pytest.mark.parametrize("config", [Eliminated(keep=0.5), WeightOnly("e3m4"), lamina.Circulant(4)])
def test_projections_of_attention(tmp_path: Path, config: Any) -> None:
    dense, x = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True).eval(), torch.randn(3, 5, 8)
    chosen = ("encoder.layers.0.self_attn.in_proj", "decoder.layers.0.multihead_attn.k_proj")
    model, record = convert(copy.deepcopy(dense), config, lambda name, _: name in chosen)
    methods = {one.layer: (one.method, ()) for one in record.replaced}
    save(tmp_path, model, dense, Origin("mine", None, None), "fp32", {}, methods)
    loaded: Any = lamina.load(tmp_path, copy.deepcopy(dense))
    assert len(methods) == 2 and torch.equal(loaded(x, x), model(x, x))
    assert isinstance(loaded.decoder.layers[0].self_attn, nn.MultiheadAttention)


def test_relus_that_layers_compute_need_no_recipe(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    model, _ = lamina.convert(copy.deepcopy(dense), lamina.Circulant(4), lambda name, _: name != "3")
    methods = dict.fromkeys("02", ("circulant[block_size=4]", ()))
    save(tmp_path, model, dense, Origin("mine", None, None), "fp32", {}, methods)
    loaded, x = lamina.load(tmp_path, copy.deepcopy(dense)), torch.randn(3, 8)
    assert torch.equal(loaded(x), model(x))
    types = [type(one) for one in loaded]
    assert types == [type(model[0]), FusedActivation, type(model[2]), FusedActivation, nn.Linear]
    taken = copy.deepcopy(model)
    taken[3] = nn.Identity()
    with pytest.raises(UsageError, match="3: expected one of"):
        save(tmp_path, taken, dense, Origin("mine", None, None), "fp32", {}, methods)


def test_other_networks_are_not_imported_by_name(lenet: nn.Module, tmp_path: Path) -> None:
    model = small(lenet)
    save(tmp_path, model, lenet, Origin("os:abort", None, None), "fp32", {})
    with pytest.raises(UsageError, match=r"pass it: lamina\.load\(path, network\)"):
        lamina.load(tmp_path)
    assert how_to_load(tmp_path).startswith(f"lamina.load({str(tmp_path)!r}, network) gives it back")
    assert torch.equal(
        lamina.load(tmp_path, lenet).state_dict()["classifier.4.codes"], small(lenet).classifier[4].codes
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision(lenet: nn.Module, tmp_path: Path, precision: str) -> None:
    unchanged(tmp_path, small(lenet), lenet, torch.randn(2, 1, 28, 28), precision)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, (3, 1), stride=2, padding_mode="reflect", padding=(1, 0), bias=False), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 6, bias=False),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["sorted", "swap"])
@pytest.mark.parametrize("by", ["channel", "tap"])
@pytest.mark.parametrize("folded", [False, True])
def test_convolutions_norms_and_linear_layers(tmp_path: Path, by: Any, order: Any, folded: bool) -> None:
    torch.manual_seed(1)
    dense = chain().eval()
    model, record = convert(copy.deepcopy(dense), Eliminated(keep=0.5, by=by, order=order))
    assert len(record.replaced) == 3
    model = fold(model)[0] if folded else model
    unchanged(tmp_path, model, dense, torch.randn(2, 3, 9, 9))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers(tmp_path: Path, bidirectional: bool) -> None:
    dense = nn.Sequential(nn.LSTM(9, 5, 2, batch_first=True, bidirectional=bidirectional)).eval()
    model, record = convert(copy.deepcopy(dense), Eliminated(keep=0.5))
    assert record.replaced
    unchanged(tmp_path, model, dense, torch.randn(2, 4, 9))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(tmp_path: Path, format: Any) -> None:
    dense = nn.Sequential(nn.Conv1d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(24, 5)).eval()
    model, _ = convert(copy.deepcopy(dense), WeightOnly(format))
    unchanged(tmp_path, model, dense, torch.randn(2, 4, 6))


@settings(max_examples=15)
@given(
    inputs=st.integers(2, 12),
    outputs=st.integers(2, 8),
    share=st.floats(0.05, 1),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_layers_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, inputs: int, outputs: int, share: float, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    dense = nn.Sequential(nn.Linear(inputs, outputs, bias), nn.ReLU(), nn.Linear(outputs, 3)).eval()
    model, _ = convert(copy.deepcopy(dense), Eliminated(keep=share))
    unchanged(tmp_path_factory.mktemp("any"), fold(model)[0], dense, torch.randn(2, inputs))


def test_what_a_recipe_cannot_tell_is_refused(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(UsageError, match=r"got GRU"):
        save(tmp_path, nn.Sequential(nn.GRU(4, 4)), dense, LENET, "fp32", {})
    with pytest.raises(UsageError, match="an additional one"):
        save(tmp_path, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), dense, LENET, "fp32", {})
    assert not list(tmp_path.iterdir())


Document = dict[str, Any]


def first_layer(document: Document) -> Document:
    layer: Document = document["layers"]["classifier.0"]
    return layer


RECIPES: dict[str, tuple[Callable[[Document], object], str]] = {
    "an unknown version": (lambda d: d.update(version=2), "expected version 1, got 2"),
    "no version": (lambda d: d.pop("version"), "expected version 1, got None"),
    "another format": (lambda d: d.update(format="other"), "expected the format 'lamina-deft', got 'other'"),
    "a missing key": (lambda d: d.pop("network"), "network: Field required"),
    "an unknown key": (lambda d: d.update(more=1), "more: Extra inputs"),
    "an unknown precision": (lambda d: d.update(precision="fp7"), "precision: "),
    "an unknown kind": (lambda d: first_layer(d).update(kind="GRU"), "layers.classifier.0.kind"),
    "an unknown weight format": (lambda d: first_layer(d).update(format="e9m9"), "format"),
    "a missing argument": (lambda d: first_layer(d)["arguments"].pop("bias"), "expected the arguments bias"),
    "an impossible argument": (
        lambda d: d["layers"]["features.0"]["arguments"].update(groups=7), "features.0: Conv2d cannot be built"
    ),
    "another network's layer": (lambda d: d["layers"].update(fc9=first_layer(d)), "layer 'fc9' is not in the network"),
    "another size": (lambda d: first_layer(d)["arguments"].update(out_features=61), "got torch.float32 (60"),
    "another count": (lambda d: first_layer(d).update(kept=3), "classifier.0.index: expected (3,)"),
    "fewer inputs than the index names": (
        lambda d: first_layer(d)["arguments"].update(in_features=9), "expected distinct integers from 0 to 8"
    ),
    "another network": (lambda d: d["network"].update(source="cifarnet"), "is not in the network"),
    "other classes": (lambda d: d["network"].update(classes=0), "classes"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), RECIPES.values(), ids=RECIPES)
def test_a_faulty_recipe_says_what_is_wrong(folder: Path, damage: Callable[[Document], object], said: str) -> None:
    document = json.loads((folder / RECIPE).read_text())
    assert first_layer(document)["kept"] and first_layer(document)["kind"] == "Linear"
    damage(document)
    (folder / RECIPE).write_text(json.dumps(document))
    with pytest.raises(UsageError) as caught:
        lamina.load(folder)
    assert said in str(caught.value)


WEIGHTS_FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "a missing tensor": (lambda t: t.pop("classifier.0.bias"), "lacks classifier.0.bias"),
    "an unknown tensor": (lambda t: t.update(more=torch.zeros(1)), "has unknown more"),
    "another shape": (lambda t: t.update({"classifier.0.bias": torch.zeros(1)}), "classifier.0.bias: expected"),
    "another type": (lambda t: t.update({"classifier.0.bias": t["classifier.0.bias"].double()}), "float64"),
    "no index": (lambda t: t.pop("classifier.0.index"), "got nothing"),
    "an index twice": (lambda t: t["classifier.0.index"].fill_(0), "expected distinct integers"),
}


@pytest.mark.parametrize(("damage", "said"), WEIGHTS_FAULTS.values(), ids=WEIGHTS_FAULTS)
def test_faulty_weights_say_what_is_wrong(
    folder: Path, damage: Callable[[dict[str, Tensor]], object], said: str
) -> None:
    tensors = load_file(folder / WEIGHTS)
    damage(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UsageError) as caught:
        lamina.load(folder)
    assert said in str(caught.value)


@settings(max_examples=40)
@given(text=st.one_of(st.binary(max_size=60), st.sampled_from([b"[]", b"{}", b"null", b'{"format": "lamina-deft"}'])))
def test_anything_else_is_refused_in_words(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.mktemp("else")
    (folder / RECIPE).write_bytes(text)
    with pytest.raises(LaminaError):
        lamina.load(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"recipe\.json: expected a recipe"):
        lamina.load(tmp_path / "nowhere")
    (folder / WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"weights\.safetensors: expected a safetensors file"):
        lamina.load(folder)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:The .grad attribute:UserWarning")
def test_scripted_and_traced_modules_stay_as_they_are(tmp_path: Path) -> None:
    part = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    x = torch.randn(3, 6)
    for number, whole in enumerate((torch.fx.symbolic_trace(part), torch.jit.trace(part, x))):
        dense = nn.Sequential(whole, nn.Linear(6, 2)).eval()
        model, _ = convert(copy.deepcopy(dense), WeightOnly("e4m3"), lambda name, _: name == "1")
        save(tmp_path / str(number), model, dense, Origin("somewhere:else", None, None), "fp32", {})
        assert torch.equal(lamina.load(tmp_path / str(number), copy.deepcopy(dense))(x), model(x))


def test_lazy_layers_get_the_sizes_of_what_was_saved(tmp_path: Path) -> None:
    dense, x = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), torch.randn(3, 5)
    dense(x)
    save(tmp_path, dense, dense, Origin("somewhere:else", None, None), "fp32", {})
    assert torch.equal(lamina.load(tmp_path, nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)))(x), dense(x))


def test_a_description_of_far_more_than_the_weights_is_not_built(folder: Path) -> None:
    document = json.loads((folder / RECIPE).read_text())
    layer = '[[layer]]\ntype = "linear"\nname = "fc"\nout_features = 1000000\n'
    document["network"]["description"] = "[input]\nshape = [100000000]\n" + layer
    (folder / RECIPE).write_text(json.dumps(document))
    with pytest.raises(UsageError, match="has 381,469,726 MiB of parameters, expected at most 4,096 times the"):
        lamina.load(folder)
