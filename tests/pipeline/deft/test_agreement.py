"""The relative error of outputs, and networks without class scores that are pruned within it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.build import from_external
from lamina.build.models.external import External
from lamina.errors import UsageError
from lamina.pipeline.deft.agreement import agreement
from lamina.pipeline.deft.deployed import Deployment
from lamina.pipeline.deft.flow import deft
from lamina.pipeline.deft.records import DeftConfig
from lamina.spec import Input
from lamina.spec.training import Training
from lamina.store import Store

CPU = torch.device("cpu")
X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        noise = torch.rand(())
        return {f"y{index}": factor * x * noise for index, factor in enumerate(self.factors)}


def test_the_output_with_the_largest_error_counts_over_all_batches() -> None:
    batches = [X[:4], X[4:]]
    assert agreement(Scaled(1, 1), Scaled(1, 1), batches, CPU) == 100
    assert agreement(Scaled(1, 0.9), Scaled(1, 1), batches, CPU) == pytest.approx(90)
    assert agreement(Scaled(1e-6, 0.7e-6), Scaled(1e-6, 1e-6), batches, CPU) == pytest.approx(70, rel=1e-5)
    assert agreement(Scaled(3), Scaled(1), batches, CPU) == 0
    assert agreement(Scaled(float("nan")), Scaled(1), batches, CPU) == 0
    assert agreement(Scaled(0), Scaled(0), batches, CPU) == 100
    assert agreement(Scaled(1), Scaled(1, 1), batches, CPU) == 0


def test_random_numbers_of_the_caller_stay_as_they_were() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    agreement(Scaled(1), Scaled(1), [X], CPU)
    assert torch.equal(torch.rand(3), expected)


class Segmenting(nn.Module):
    """Scores of each pixel from an image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 8, 1), nn.Linear(4, 8), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor, vector: Tensor) -> dict[str, Tensor]:
        y: Tensor = self.third(torch.relu(self.first(image) + self.second(vector)[:, :, None, None]))
        return {"out": y}


SETTINGS = Training(epochs=1, batch=16, learning_rate=0.01, warmup_steps=0)
QUICK = DeftConfig(keep_ratios=(0.5,), calibration=4, max_accuracy_drop=100, target_speedup=1.5, format="none")
QUICK_ANY = DeftConfig(keep_ratios=(0.5,), calibration=4)


def test_networks_without_class_scores_keep_their_outputs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = (Input(name="image", shape=(3, 4, 4)), Input(name="vector", shape=(4,)))
    target = from_external("segmenting", lambda: External(Segmenting()), inputs)
    monkeypatch.setattr(Deployment, "ratio", lambda *_: 0.5)
    outcome = deft(target, "synthetic", SETTINGS, store, tmp_path / "out", QUICK, cache=tmp_path)
    assert outcome.objective == "output error" and outcome.dense.test_accuracy == 100
    assert 0 <= outcome.result.test_accuracy < 100 and outcome.result.parameters < outcome.dense.parameters
    notes = store.runs()[0].remarks
    assert notes[1].endswith("--max-accuracy-drop limits the relative error of its outputs, in percent")
    (change,) = store.what_ifs(outcome.run_id)
    assert change.detail.startswith("output error 0.00 % -> ")
    row = store.layers(outcome.run_id)[0]
    assert row.inputs == ((1, 3, 4, 4), (1, 4)) and row.output == (1, 2, 4, 4)
    loaded = lamina.load(tmp_path / "out", Segmenting())
    assert loaded(torch.randn(5, 3, 4, 4), torch.randn(5, 4))["out"].shape == (5, 2, 4, 4)
    with pytest.raises(UsageError, match="leave out --epochs"):
        deft(
            target, "synthetic", SETTINGS, store, tmp_path / "tuned",
            DeftConfig(keep_ratios=(0.5,), calibration=4, tuning=1), cache=tmp_path,
        )  # fmt: skip


def test_lazy_layers_can_be_pruned(store: Store, tmp_path: Path) -> None:
    target = from_external("lazy", lambda: External(nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(10))), (6,))
    outcome = deft(target, "synthetic", SETTINGS, store, tmp_path / "out", QUICK_ANY, cache=tmp_path)
    assert outcome.objective == "accuracy" and [one.inputs for one in outcome.layers] == [6, 8]


def test_weights_of_another_dtype_are_pruned_in_float32(store: Store, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10)).double()

    target = from_external("double", lambda: External(make()), (6,))
    deft(target, "synthetic", SETTINGS, store, tmp_path / "out", QUICK_ANY, cache=tmp_path)
    assert store.runs()[0].remarks[0] == "double: its weights are float64 and are converted to fp32"
    assert lamina.load(tmp_path / "out", make())(torch.randn(5, 6)).shape == (5, 10)
