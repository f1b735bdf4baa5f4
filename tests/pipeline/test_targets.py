"""What a word on the command line means."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lamina.errors import SpecError, UsageError
from lamina.pipeline import bench, find
from lamina.spec import Input, ScalarInput, Workload
from lamina.store import Store


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


def test_a_network_that_is_there_is_measured_in_copies(store: Store, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    target, workload = find(model, input_size=(4,))
    assert target.name == "Sequential" and workload is None
    assert [layer.output for layer in target.resolve(5)] == [(5, 3), (5, 3), (5, 2)]
    assert torch.equal(target.make(None)(torch.ones(1, 4)), model(torch.ones(1, 4)))
    bench(target, Workload(batch=(2,)), store, cache=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Timed(nn.Module):
    """Has a time step for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.fc = nn.Embedding(100, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.fc(x + self.steps(t))


def test_an_input_may_have_one_value_per_sample() -> None:
    inputs = Input(name="x", shape=(8,)), ScalarInput(name="t", content="indices", vocabulary=100)
    target, _ = find(Timed(), input_size=inputs)
    (x, t), _, _ = target.example(5, None, "fp32", torch.device("cpu"), "nchw", 0)
    assert (x.shape, t.shape, t.dtype) == ((5, 8), (5,), torch.int64)
    assert target.resolve(5)[-1].output == (5, 4)


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected the name of a network or a torch\.nn\.Module, got int"):
        find(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Linear: its input shape is unknown; .* input_size=\(3, 224, 224\)"):
        find(nn.Linear(2, 2))
    odd = nn.Linear(2, 2)
    odd.rows = (row for row in ())  # type: ignore[assignment]
    with pytest.raises(UsageError, match="Linear cannot be copied: "):
        find(odd, input_size=(2,))


def test_an_unknown_input_size_is_asked_for() -> None:
    with pytest.raises(UsageError, match="--input-size"):
        find("torch.nn:ReLU")


def test_nothing_known_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        find("resnet5O")
    with pytest.raises(UsageError, match="there is no such file"):
        find("nowhere/at/all.toml")


def test_a_name_that_a_file_lacks_gets_the_nearest_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # which also restores the path
    path = tmp_path / "nets_of_targets.py"
    path.write_text("from torch import nn\ndef rope(x): ...\nclass Net(nn.Module): ...\nclass Loud(nn.Module): ...\n")
    with pytest.raises(UsageError, match=r"nets_of_targets.py' has no 'Rope': expected one of: Loud, Net"):
        find(f"{path}:Rope", input_size=(2,))[0].make(None)
    with pytest.raises(UsageError, match="'nets_of_targets' has no 'Nets': did you mean 'Net'"):
        find("nets_of_targets:Nets", input_size=(2,))[0].make(None)


def test_variables_fill_a_template() -> None:
    with pytest.raises(SpecError, match="--set"):
        find("dnnmark-template")
    sizes = {"N": "2", "C": "3", "H": "9", "W": "9", "K": "4", "S": "3", "P": "1", "U": "2"}
    (layer,) = find("dnnmark-template", sizes)[0].resolve()
    assert layer.output == (2, 4, 5, 5)


def test_variables_for_the_zoo_are_refused() -> None:
    with pytest.raises(UsageError, match="has no variables"):
        find("lenet5", {"N": "1"})
