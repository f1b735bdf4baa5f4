"""deft: trained, searched, tuned, saved and loaded; what a machine's load does to times has no say here."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lamina
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.build.data import loader, train_test
from lamina.errors import UsageError
from lamina.pipeline import find
from lamina.pipeline.deft import choosing, deployed, pruning
from lamina.pipeline.deft.flow import CHECKPOINT, JOURNAL, deft
from lamina.pipeline.deft.recipe_files import RECIPE, WEIGHTS, read_recipe
from lamina.pipeline.deft.records import DeftConfig, Outcome
from lamina.pipeline.deft.trained import pretrained
from lamina.record import Epoch, Timing
from lamina.spec.training import Training
from lamina.store import Store, open_store

SETTINGS = Training(epochs=2, batch=20, learning_rate=0.05, warmup_steps=0)
HALVES = DeftConfig(keep_ratios=(0.5,), calibration=20, max_accuracy_drop=5)


def latency(model: nn.Module) -> float:
    """What stands for it here: no test depends on the time of anything."""
    return deployed.parameters(model) / 1000


def by_size(self: deployed.Deployment, *models: nn.Module) -> list[Timing]:
    return [Timing("cpu", "-", latency(m), 0.999 * latency(m), 1.001 * latency(m), 7) for m in models]


@pytest.fixture(scope="module", autouse=True)
def untimed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployed.Deployment, "interleaved", by_size)
        patch.setattr(deployed.Deployment, "ratio", lambda self, model, dense: latency(model) / latency(dense))
        yield


def run(folder: Path, data: str, store: Store, asked: DeftConfig = HALVES, **options: Any) -> Outcome:
    """LeNet-5, unless another network is named."""
    target, _ = find(options.pop("network", "lenet5"))
    options = {"cache": folder} | options
    return deft(target, data, options.pop("settings", SETTINGS), store, folder, asked, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: str) -> tuple[Path, Path, Outcome]:
    """A folder, the database beside it, and what was found."""
    folder = tmp_path_factory.mktemp("trained")
    place = folder / "lamina.db"
    with open_store(place) as store:
        return folder, place, run(folder, data, store)


def of_the_test_split(model: nn.Module, data: str) -> float:
    x, y = next(iter(loader(train_test(data)[1], None, 100, 0, 0, shuffle=False)))
    with torch.no_grad():
        return 100 * float((model(x).argmax(1) == y).double().mean())


def test_the_loaded_network_is_the_measured_one(trained: tuple[Path, Path, Outcome], data: str) -> None:
    folder, _, outcome = trained
    model = lamina.load(folder)
    assert of_the_test_split(model, data) == pytest.approx(outcome.result.test_accuracy)
    assert sum(int(p.count_nonzero()) for p in model.parameters()) == outcome.result.parameters
    assert outcome.result.parameters < outcome.dense.parameters
    assert sum(tensor.nbytes for tensor in load_file(folder / WEIGHTS).values()) == outcome.result.bytes


def test_the_dense_network_learned_and_is_kept(trained: tuple[Path, Path, Outcome], data: str) -> None:
    folder, _, outcome = trained
    dense = pretrained(find("lenet5")[0].make(2), folder / CHECKPOINT)
    assert of_the_test_split(dense, data) == pytest.approx(outcome.dense.test_accuracy)
    assert outcome.dense.test_accuracy > 90


def test_the_budget_is_kept_on_what_was_chosen_by(trained: tuple[Path, Path, Outcome]) -> None:
    outcome = trained[2]
    assert outcome.dense.calibration_accuracy - outcome.searched.accuracy <= HALVES.max_accuracy_drop
    within = [p for p in outcome.front if p.accuracy >= outcome.dense.calibration_accuracy - HALVES.max_accuracy_drop]
    assert outcome.searched.latency == min(point.latency for point in within)
    assert outcome.result.calibration_accuracy == pytest.approx(outcome.searched.accuracy)


def test_each_layer_says_what_became_of_it(trained: tuple[Path, Path, Outcome]) -> None:
    folder, _, outcome = trained
    layers = {one.layer: one for one in outcome.layers}
    assert list(layers) == ["features.0", "features.3", "classifier.0", "classifier.2", "classifier.4"]
    assert layers["features.0"].reason == "it has one input"
    model = lamina.load(folder)
    for name, share in outcome.searched.choice.items():
        one, weight = layers[name], model.get_parameter(f"{name}.weight")
        assert one.kept == (one.inputs if share == 1 else one.inputs // 2)
        assert len(weight) == one.live
        assert (one.error is None) == (share == 1)
        how = "by contribution" if one.alpha is None else "by correlation"
        assert one.reason.startswith("kept whole; alone at" if share == 1 else f"{how}; alone at 0.5: ")
    # 20 images are fewer rows than linear layers keep inputs, so those fits are exact. A convolution has a row a pixel.
    assert layers["features.3"].error > 0.1  # type: ignore[operator]


def test_the_store_has_epochs_and_the_whole_change(trained: tuple[Path, Path, Outcome]) -> None:
    _, place, outcome = trained
    with open_store(place) as store:
        this = store.run(outcome.run_id)
        (change,) = store.what_ifs(this.id)
        epochs, rows = store.epochs(this.id), {row.impl: row for row in store.layers(this.id)}
    assert (this.verb, this.status, this.target) == ("deft", "done", "lenet5")
    assert this.config["deft"]["keep_ratios"] == [0.5]
    assert [epoch.epoch for epoch in epochs] == [0, 1]
    assert (change.change, change.layer, change.before) == ("deft", "lenet5", outcome.dense.latency)
    assert change.after == outcome.result.latency
    assert f"{outcome.result.test_accuracy:.2f} %" in change.detail
    assert list(rows) == ["dense", "eliminated[recovery=least_squares]"]
    assert rows["dense"].timing == outcome.dense.latency and rows["dense"].inputs == ((1, 1, 28, 28),)
    ours = rows["eliminated[recovery=least_squares]"]
    assert (ours.parameters, ours.flops) == (outcome.result.parameters, 2 * outcome.result.multiplications)


def test_outcomes_are_plain_json(trained: tuple[Path, Path, Outcome]) -> None:
    document = json.loads(json.dumps(trained[2].document(), allow_nan=False))
    assert document["speedup"] == pytest.approx(trained[2].speedup)
    assert document["accuracy_drop"] == pytest.approx(trained[2].drop)
    assert read_recipe(trained[0]).facts["choice"] == document["searched"]["choice"]


def test_a_stopped_job_goes_on_where_it_was(
    data: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(choosing.Chooser, "choose", stop)
        with pytest.raises(Stopped):
            run(tmp_path, data, store)
    journal = (tmp_path / JOURNAL).read_bytes()
    assert not (tmp_path / RECIPE).exists()
    events: list[object] = []
    monkeypatch.setattr(deployed.Deployment, "ratio", stop)  # nothing is left to ask
    outcome = run(tmp_path, data, store, resume=True, watch=events.append)
    assert not any(isinstance(event, Epoch) for event in events)
    assert (tmp_path / JOURNAL).read_bytes() == journal
    assert [this.id for this in store.runs()] == [outcome.run_id]
    with pytest.raises(UsageError, match="expected the journal of"):
        run(tmp_path, data, store, replace(HALVES, batch=2), resume=True)
    with pytest.raises(UsageError, match="was trained with"):
        run(tmp_path, data, store, resume=True, settings=SETTINGS.model_copy(update={"learning_rate": 0.1}))


@pytest.fixture
def weights(trained: tuple[Path, Path, Outcome], tmp_path: Path) -> Path:
    """A plain state dict of the trained network."""
    path = tmp_path / "dense.safetensors"
    save_file(pretrained(find("lenet5")[0].make(2), trained[0] / CHECKPOINT).state_dict(), path)
    return path


def test_weights_from_a_file_are_not_trained(
    trained: tuple[Path, Path, Outcome], weights: Path, data: str, store: Store, tmp_path: Path
) -> None:
    events: list[object] = []
    outcome = run(tmp_path / "out", data, store, weights=weights, watch=events.append)
    assert not any(isinstance(event, Epoch) for event in events)
    assert outcome.dense.test_accuracy == trained[2].dense.test_accuracy
    assert outcome.searched == trained[2].searched
    assert any("may have been trained on" in remark for remark in outcome.remarks)
    first, second = load_file(trained[0] / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("classifier.0.bias"), r"no classifier\.0\.bias"),
        (lambda t: t.update(more=torch.zeros(1)), "unknown more"),
        (lambda t: t.update({"classifier.4.bias": torch.zeros(3)}), r"classifier\.4\.bias \(3,\) for \(2,\)"),
        (lambda t: t.clear(), "no classifier"),
    ],
)
def test_weights_of_another_network_are_refused(weights: Path, tmp_path: Path, change: Any, said: str) -> None:
    tensors = load_file(weights)
    change(tensors)
    save_file(tensors or {"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=said):
        pretrained(find("lenet5")[0].make(2), tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="expected a safetensors file"):
        pretrained(find("lenet5")[0].make(2), tmp_path / "none.safetensors")


def test_a_named_format_and_another_precision(weights: Path, data: str, store: Store, tmp_path: Path) -> None:
    asked = replace(HALVES, format="e3m4", precision="bf16", keep_ratios=(0.9,), max_accuracy_drop=20)
    outcome = run(tmp_path / "out", data, store, asked, weights=weights)
    model = lamina.load(tmp_path / "out")
    stored = [name for name, one in model.named_modules() if isinstance(one, WeightOnlyConv | WeightOnlyLinear)]
    assert stored == [one.layer for one in outcome.layers if one.format == "e3m4"] != []
    assert model.get_parameter("features.0.bias").dtype == torch.bfloat16
    assert outcome.result.bytes < outcome.dense.bytes


def test_tuning_gives_accuracy_back(weights: Path, data: str, store: Store, tmp_path: Path) -> None:
    asked = replace(HALVES, recovery="none", keep_ratios=(0.1,), max_accuracy_drop=0)
    fast = SETTINGS.model_copy(update={"learning_rate": 0.15})  # of which tuning takes a third
    plain = run(tmp_path / "plain", data, store, asked, weights=weights)
    tuned = run(tmp_path / "tuned", data, store, replace(asked, tuning=5), weights=weights, settings=fast)
    assert tuned.result.calibration_accuracy >= tuned.dense.calibration_accuracy
    assert tuned.result.parameters < plain.result.parameters
    assert store.epochs(tuned.run_id) and not store.epochs(plain.run_id)
    tried = {point.latency: point.accuracy for point in tuned.tuned}
    assert plain.tuned == () and min(tried) == tuned.front[0].latency
    assert tried[tuned.searched.latency] == pytest.approx(tuned.result.calibration_accuracy)


def test_the_dense_network_stands_beside_the_one_that_is_tuned_as_long(
    weights: Path, data: str, store: Store, tmp_path: Path
) -> None:
    asked = replace(HALVES, tuning=1, compare=("dense", "iterative-magnitude"))
    outcome = run(tmp_path / "out", data, store, asked, weights=weights)
    assert [one.name for one in outcome.compared] == ["dense-tuned", "iterative-magnitude"]
    assert outcome.dense.name == "dense"
    given = pretrained(find("lenet5")[0].make(2), weights).eval()
    assert outcome.dense.test_accuracy == pytest.approx(of_the_test_split(given, data))
    rows = {row.impl for row in store.layers(outcome.run_id)}
    assert {"dense", "dense[tuned=true]", "pruned[by=iterative-magnitude]"} < rows


@pytest.mark.parametrize("tuning", [0, 1])
def test_a_target_out_of_reach_is_said(weights: Path, data: str, store: Store, tmp_path: Path, tuning: int) -> None:
    asked = replace(HALVES, target_speedup=50, tuning=tuning)
    with pytest.raises(UsageError, match="at a speedup of at least 50"):
        run(tmp_path / "out", data, store, asked, weights=weights)
    assert store.runs()[0].status == "failed"
    assert not (tmp_path / "out" / RECIPE).exists()


def test_a_target_takes_the_most_accurate_that_has_it(weights: Path, data: str, store: Store, tmp_path: Path) -> None:
    asked = replace(HALVES, target_speedup=1.5, max_accuracy_drop=50)
    outcome = run(tmp_path / "out", data, store, asked, weights=weights)
    fast = [point for point in outcome.front if 1 / point.latency >= 1.5]
    assert outcome.searched.accuracy == max(point.accuracy for point in fast)


def test_others_are_pruned_as_far(weights: Path, data: str, store: Store, tmp_path: Path) -> None:
    pytest.importorskip("torch_pruning")
    asked = replace(HALVES, compare=("magnitude", "channels"))
    outcome = run(tmp_path / "out", data, store, asked, weights=weights)
    ours, (magnitude, channels) = outcome.result, outcome.compared
    assert (magnitude.name, channels.name) == ("magnitude", "channels")
    assert magnitude.parameters == pytest.approx(ours.parameters, rel=0.02)  # but for biases that folding takes
    assert (magnitude.bytes, magnitude.multiplications) == (outcome.dense.bytes, outcome.dense.multiplications)
    assert ours.multiplications <= channels.multiplications < 1.3 * ours.multiplications
    assert channels.bytes < outcome.dense.bytes


def test_a_comparison_that_cannot_be_made_is_left_out_with_the_reason(
    weights: Path, data: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_pruning")

    def refused(*_: object) -> nn.Module:
        raise RuntimeError("shape '[1, 400]' is invalid")

    monkeypatch.setattr(pruning, "_narrowed", refused)
    outcome = run(tmp_path / "out", data, store, replace(HALVES, compare=("channels", "magnitude")), weights=weights)
    assert [one.name for one in outcome.compared] == ["magnitude"]
    assert any("channels is left out" in remark and "'[1, 400]'" in remark for remark in outcome.remarks)


def test_what_is_slower_at_length_is_not_taken(
    weights: Path, data: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(self: deployed.Deployment, *models: nn.Module) -> list[Timing]:
        return list(reversed(by_size(self, *models)))

    monkeypatch.setattr(deployed.Deployment, "interleaved", backwards)
    outcome = run(tmp_path / "out", data, store, weights=weights)
    assert set(outcome.searched.choice.values()) == {1.0}
    assert outcome.result.parameters == outcome.dense.parameters
    assert any("which is kept" in remark for remark in outcome.remarks)
    assert read_recipe(tmp_path / "out").layers == {}
    asked = replace(HALVES, target_speedup=1.5, max_accuracy_drop=50)
    outcome = run(tmp_path / "target", data, store, asked, weights=weights)
    assert outcome.result.parameters < outcome.dense.parameters
    assert any("less than 1.5" in remark for remark in outcome.remarks)


def test_described_networks_too(data: str, store: Store, tmp_path: Path) -> None:
    from lamina import recipes

    path = recipes.find("lenet5").path
    outcome = run(tmp_path / "out", data, store, network=str(path), settings=SETTINGS.model_copy(update={"epochs": 1}))
    model = lamina.load(tmp_path / "out")
    assert of_the_test_split(model, data) == pytest.approx(outcome.result.test_accuracy)
    assert not any("not pruned" in remark for remark in outcome.remarks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_ratios": ()}, {"keep_ratios": (1.0,)}, {"keep_ratios": (0.0,)},
        {"max_accuracy_drop": -1}, {"target_speedup": 0.5},
        {"tuning": -1}, {"calibration": 0}, {"batch": 0}, {"format": "e4m33"}, {"compare": ("magnitud",)},
        {"recovery": "hope"}, {"align": 0}, {"max_accuracy_drop": float("nan")}, {"target_speedup": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(HALVES, **wrong)


class Rows(nn.Module):
    """Reads a picture's rows as tokens."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.embed, self.encoder = nn.Linear(28, 32), nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.encoder(self.embed(x.reshape(-1, 28, 28))).mean(1))


@pytest.mark.parametrize("format", ["none", "e3m4"])
def test_projections_of_attention_are_layers(data: str, store: Store, tmp_path: Path, format: Any) -> None:
    target, _ = find(f"{__name__}:Rows", input_size=(1, 28, 28))
    one = "encoder.layers.0.self_attn.in_proj"
    asked = replace(HALVES, keep_ratios=(0.25,), layers=("*in_proj",), max_accuracy_drop=100, format=format)
    outcome = deft(target, data, SETTINGS, store, tmp_path, asked, cache=tmp_path)
    layers = {layer.layer: layer for layer in outcome.layers}
    assert (layers[one].inputs, layers[one].kept, layers[one].outputs) == (32, 8, 96)
    assert layers["encoder.layers.0.self_attn.out_proj"].reason.startswith("it was not selected")
    saved = read_recipe(tmp_path).layers
    assert saved[one].kept == 8
    assert ("encoder.layers.0.self_attn.out_proj" in saved) == (format != "none")
    model = lamina.load(tmp_path, Rows())
    assert of_the_test_split(model, data) == pytest.approx(outcome.result.test_accuracy)
