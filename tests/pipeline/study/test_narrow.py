"""Plans for training with pruned inputs, whose producers are folded: a narrower network, trained from its start."""

from pathlib import Path
from typing import Any

import torch
from tests.pipeline.study.nets import chain
from torch import nn

import lamina
from lamina.pipeline import find
from lamina.pipeline.study import StudyConfig, study
from lamina.pipeline.study.folded import fold_impl
from lamina.spec import Method
from lamina.spec.plan_file import read_plan
from lamina.spec.training import Training
from lamina.store import Store

HALF = "eliminated[recovery=variance,keep=0.5,select=even,impl=gather]"


def test_the_plan_makes_the_same_network_of_another_one(tmp_path: Path, data: str, store: Store) -> None:
    config = StudyConfig(
        goal="train", modes=("eager",), precisions=("fp32",), batch=8, calibration=20, epochs=1, rivals=False,
        max_accuracy_drop=100.0, methods=(HALF,),
    )  # fmt: skip
    target, _ = find("tests.pipeline.study.nets:chain", input_size=(1, 28, 28))
    settings = Training(batch=20, learning_rate=0.05, warmup_steps=0)
    done = study(target, data, settings, store, tmp_path / "out", config, cache=tmp_path / "cache")
    methods = {one.name: one.method for one in read_plan(done.folder).layers}
    assert methods["0"] == "dense", "nothing computes its inputs"
    assert methods["7"] == fold_impl(Method.parse(HALF), 49), "the pixels of a channel go together"
    assert methods["3"] == methods["9"] == fold_impl(Method.parse(HALF), 1)
    trained: Any = lamina.load(done.folder, chain())
    other: Any = lamina.apply(chain().train(), done.folder)
    assert [tuple(one.shape) for one in other.parameters()] == [tuple(one.shape) for one in trained.parameters()]
    assert (other[0].out_channels, other[1].num_features, other[7].in_features) == (4, 4, 8 * 49)
    assert all(type(layer) in (nn.Conv2d, nn.Linear) for layer in (other[0], other[3], other[7], other[9]))
    other(torch.randn(4, 1, 28, 28)).sum().backward()
    assert all(one.grad is not None for one in other.parameters())


def test_pruned_inputs_start_with_the_variance_of_all() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(64, 32, 3), nn.Flatten())
    x = torch.randn(8, 64, 8, 8)
    before = dense(x).var().item()
    model, _ = lamina.convert(dense, lamina.accelerate.configuration(Method.parse(HALF)))
    assert 0.7 * before < model(x).var().item() < 1.4 * before
