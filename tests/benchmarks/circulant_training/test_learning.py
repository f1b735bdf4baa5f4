"""A run: which layers get blocks, how fast they learn, and on which samples."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.circulant_training.experiments import EXPERIMENTS, SMOKE
from benchmarks.circulant_training.learning import NARROW, built, held, learnt
from lamina.accelerate.methods.circulant import nn
from lamina.accelerate.methods.circulant.projection import Projection, diagonal_sums
from lamina.build.data import synthetic


def zero_blocks(dense: torch.Tensor, block_size: int, *, groups: int = 1, rescale: bool = False) -> Projection:
    """Blocks of the right shape: those nearest to the weights of all networks take half a minute."""
    return Projection(torch.zeros(diagonal_sums(dense.to("meta"), block_size, groups).shape), 1.0)


def test_each_network_takes_the_blocks_and_gives_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "project", zero_blocks)
    for name, shape in {(experiment.network, experiment.input) for experiment in EXPERIMENTS.values()}:
        network, record = built(name, 10, 64, "dense")
        assert record is not None
        assert record.replaced, name
        with torch.no_grad():
            assert network.eval()(torch.zeros(1, *shape)).shape == (1, 10), name


@pytest.mark.parametrize(("held_out", "samples"), [(False, 32), (True, 27)])
def test_blocks_learn_by_the_exponent_and_a_part_may_be_held_out(tiny: str, held_out: bool, samples: int) -> None:
    (experiment,) = SMOKE.values()
    experiment = replace(experiment, exponent=0.5)
    (row,) = learnt("net", experiment, 16, 0, tiny, torch.device("cpu"), held_out)
    assert (row["block_learning_rate"] / row["learning_rate"], row["samples"]) == (pytest.approx(4), samples)


def test_a_sixth_of_the_training_samples_is_held_out() -> None:
    data = synthetic((1, 4, 4), 3, 60)
    train_set, test_set = held(data)
    parts = [[tuple(one.flatten().tolist()) for one in part.x] for part in (train_set, test_set)]
    assert (len(train_set), len(test_set)) == (50, 10) and not {*parts[0]} & {*parts[1]}
    assert {*parts[0], *parts[1]} == {tuple(one.flatten().tolist()) for one in data.x}
    assert train_set.mean == test_set.mean == data.mean


def test_dropout_shrinks_with_the_weights() -> None:
    rates = [
        [layer.p for layer in built("conv4fc3", 10, k, "reference")[0].modules() if hasattr(layer, "p")]
        for k in (1, 16)
    ]
    assert rates == [[0.5, 0.5], [0.125, 0.125]]


def test_the_first_convolution_and_the_classifier_stay_dense() -> None:
    record = built("tdnn", 64, 16, "reference")[1]
    assert record is not None
    assert [one.layer for one in record.skipped if one.refusal == "not selected"] == ["features.0", "classifier"]
    record = built("lstm", 64, 16, "reference")[1]
    assert record is not None
    assert [one.layer for one in record.replaced] == ["lstm"]


def test_batch_normalisation_follows_each_convolution() -> None:
    for block_size in (1, 16):
        network: Any = built("conv4fc3", 10, block_size, "reference", normed=True)[0]
        kinds = [type(each).__name__.replace("BlockCirculant", "") for each in network.features]
        assert kinds == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"] * 2
        assert [each.num_features for each in network.features if hasattr(each, "num_features")] == [64, 64, 128, 128]


def test_narrow_convolutions_stay_dense() -> None:
    record = built("conv4fc3", 10, 16, "reference", narrow=NARROW)[1]
    assert record is not None
    assert [one.layer for one in record.replaced] == ["features.7", "classifier.0", "classifier.3"]
