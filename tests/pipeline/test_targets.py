"""What a word on the command line means."""

from pathlib import Path

import pytest

from lamina.errors import SpecError, UsageError
from lamina.pipeline import find


def test_a_name_of_the_zoo() -> None:
    target, workload = find("lenet5")
    assert target.name == "lenet5" and target.classes == 10 and workload is None


def test_a_recipe_by_its_full_or_short_name() -> None:
    assert find("models/lenet5")[0].network == find("lenet5.toml")[0].network
    assert find("dnnmark-vgg16")[0].network is not None


def test_a_file_wins_over_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pooling.toml").write_text('name = "mine"\n[input]\nshape = [1, 4, 4]\n[[layer]]\ntype = "bypass"\n')
    assert find("pooling.toml")[0].name == "mine"


def test_any_package_s_network_with_its_input_size() -> None:
    target, _ = find("torch.nn:ReLU", input_size=(3, 4))
    (layer,) = target.resolve(2)
    assert layer.layer.kind == "activation" and layer.output == (2, 3, 4)


def test_an_unknown_input_size_is_asked_for() -> None:
    with pytest.raises(UsageError, match="--input-size"):
        find("torch.nn:ReLU")


def test_nothing_known_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        find("resnet5O")
    with pytest.raises(UsageError, match="there is no such file"):
        find("nowhere/at/all.toml")


def test_variables_fill_a_template() -> None:
    with pytest.raises(SpecError, match="--set"):
        find("dnnmark-template")
    sizes = {"N": "2", "C": "3", "H": "9", "W": "9", "K": "4", "S": "3", "P": "1", "U": "2"}
    (layer,) = find("dnnmark-template", sizes)[0].resolve()
    assert layer.output == (2, 4, 5, 5)


def test_variables_for_the_zoo_are_refused() -> None:
    with pytest.raises(UsageError, match="has no variables"):
        find("lenet5", {"N": "1"})
