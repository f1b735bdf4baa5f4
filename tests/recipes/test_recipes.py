"""The shipped workload files."""

from pathlib import Path

import pytest

from lamina import recipes
from lamina.errors import UsageError
from lamina.recipes import Recipe
from lamina.spec import KINDS, Network, read, read_toml, write_toml
from lamina.spec.dnnmark.sections import SECTIONS

RECIPES = recipes.ls()
SIZES = dict(zip("NCHWKSPU", ["8", "16", "32", "32", "32", "5", "2", "1"], strict=True))


def network(recipe: Recipe) -> Network:
    return read(recipe.path, SIZES if recipe.path.suffix == ".dnntemplate" else {})[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_are_read_and_their_shapes_fit(recipe: Recipe) -> None:
    net = network(recipe)
    assert len(net.resolve()) == len(net.layers)
    assert not [remark for remark in net.remarks if not remark.startswith("no convolution algorithm is given")]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_begin_with_what_they_are(recipe: Recipe) -> None:
    assert recipe.path.read_text(encoding="utf-8").startswith(f"# {recipe.summary}\n")
    assert 5 < len(recipe.summary) < 110
    assert recipe.summary.endswith(".")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_are_written_and_read_again(recipe: Recipe) -> None:
    net = network(recipe)
    assert read_toml(write_toml(net), "a.toml")[0].model_dump() == net.model_dump()


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.kind != "papers"], ids=lambda recipe: recipe.name)
def test_recipes_are_small_enough_for_a_cpu(recipe: Recipe) -> None:
    """A step of at most a hundred billion operations is a few seconds of two cores."""
    layers = network(recipe).resolve()
    assert sum(layer.cost(phase).flops for layer in layers for phase in layer.phases) < 100e9


def test_every_kind_of_layer_has_a_recipe() -> None:
    shown = {layer.kind for recipe in RECIPES for layer in network(recipe).layers}
    assert shown >= set(KINDS) - {"transpose"}


def test_every_section_of_dnnmark_has_a_recipe_in_both_formats() -> None:
    texts = [each.path.read_text() for each in RECIPES if each.path.suffix == ".dnnmark"]
    missing = {section for section in SECTIONS if not any(f"[{section}]" in text for text in texts)}
    assert missing == {"CBMFullyConnected"}  # the other spelling of BCMFullyConnected
    dnnmark = {
        each.path.stem.removeprefix("dnnmark-") for each in RECIPES if each.name.startswith("primitives/dnnmark-")
    }
    toml = {each.path.stem for each in RECIPES if each.path.suffix == ".toml"}
    assert dnnmark - toml == {"composed", "template", "fully-connected"}
    assert "linear" in toml


@pytest.mark.parametrize("name", ["convolution", "pooling", "lrn", "batch-norm", "dropout", "bypass"])
def test_both_formats_say_the_same(name: str) -> None:
    ours, theirs = (network(recipes.find(f"primitives/{prefix}{name}")).resolve() for prefix in ("", "dnnmark-"))
    for a, b in zip(ours, theirs, strict=True):
        flat = [(shape[0], shape[1]) for shape in (*a.inputs, a.output)]
        assert flat == [(shape[0], shape[1]) for shape in (*b.inputs, b.output)]
        assert [a.cost(phase) for phase in a.phases] == [b.cost(phase) for phase in b.phases]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet5", 61_706),  # LeCun 1998's layers, fully connected throughout
        ("models/alexnet", 60_965_224),  # the 60 million of Krizhevsky 2012
        ("dnnmark-vgg16", 138_344_128),  # Simonyan 2015: 138 million, here without biases
    ],
)
def test_models_have_the_parameters_they_are_known_for(name: str, parameters: int) -> None:
    assert sum(layer.parameters for layer in network(recipes.find(name)).resolve()) == parameters


def test_names_may_be_short_where_they_are_clear() -> None:
    assert {recipes.find(name).name for name in ("models/lenet5", "lenet5", "lenet5.toml", "models/lenet5.toml")} == {
        "models/lenet5"
    }
    assert len({each.name for each in RECIPES}) == len(RECIPES)


def test_unknown_and_unclear_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no recipe 'lenet': did you mean 'lenet5'\?"):
        recipes.find("lenet")
    twin = Recipe("papers/lenet5", "papers", Path("papers/lenet5.toml"), "")
    monkeypatch.setattr(recipes, "ls", lambda: (*RECIPES, twin))
    with pytest.raises(UsageError, match="may be models/lenet5 or papers/lenet5: say which"):
        recipes.find("lenet5")


def test_a_recipe_is_shown_and_copied(tmp_path: Path) -> None:
    text = recipes.show("lenet5")
    assert text.startswith("# LeNet-5")
    copy = recipes.cp("lenet5", tmp_path)
    assert (copy, copy.read_text()) == (tmp_path / "lenet5.toml", text)
    copy.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        recipes.cp("lenet5", tmp_path)
    assert copy.read_text() == "mine"
    assert recipes.cp("lenet5", tmp_path, force=True).read_text() == text
    with pytest.raises(UsageError, match="expected a folder that exists"):
        recipes.cp("lenet5", tmp_path / "nowhere")
