"""Networks by choices, and what a choice damages."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.pipeline.study.journal import Journal
from lamina.pipeline.study.plans import Plans, _with_dense_layers, gathering
from lamina.record.study import Settings


def test_damage_is_that_of_dense_layers_which_compute_the_same() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32), nn.Linear(32, 8)).eval()
    model, _ = lamina.convert(dense, lamina.Circulant(4), lambda name, _: name == "0")
    model, _ = lamina.convert(model, lamina.Eliminated(keep=0.5), lambda name, _: name == "3")
    model, _ = lamina.convert(model, lamina.WeightOnly(), lambda name, _: name == "4")
    x = torch.randn(3, 8, 6, 6)
    expected = model(x)
    plain = _with_dense_layers(model)
    assert [type(one) for one in plain] == [nn.Conv2d, nn.ReLU, nn.Flatten, nn.Linear, nn.Linear]
    torch.testing.assert_close(plain(x), expected)


def test_pruned_layers_train_by_operators_of_pytorch() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 32))
    model, _ = lamina.convert(model, lamina.Eliminated(keep=0.5))
    model[0].impl = "kernel"
    with gathering(model):
        assert model[0].impl == model[2].impl == "gather"
    assert (model[0].impl, model[2].impl) == ("kernel", "auto")


def test_layers_that_pruned_readers_leave_too_few_outputs_stay_dense() -> None:
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    none: Any = None
    dense: Any = SimpleNamespace(training=True, start=lambda settings: net)
    plans = Plans(dense, none, 1, none, none, none, none, none)
    pruned = "eliminated[recovery=variance,keep=0.5,select=even,fold=true]"
    choice = {"0": "circulant[block_size=4]", "2": "circulant[block_size=16]", "4": pruned}
    kept = plans.possible(choice)  # layer 2 keeps 8 of its outputs
    assert kept == {"0": "circulant[block_size=4]", "4": pruned}
    assert plans.make(kept)[2].out_channels == 8
    other = {"2": "circulant[block_size=16]", "4": pruned.replace(",fold=true", "")}
    assert plans.possible(other) is other


def test_attention_without_a_choice_stays_as_it_is() -> None:
    net = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    none: Any = None
    subject: Any = SimpleNamespace(training=False, start=lambda settings: net)
    plans = Plans(subject, none, 1, none, none, none, none, none)
    for choice, packed in (({"0.linear1": "weight-only"}, True), ({"0.self_attn.out_proj": "weight-only"}, False)):
        layer: Any = plans.make(choice)[0]
        assert isinstance(layer.self_attn, nn.MultiheadAttention) == packed
    assert isinstance(net[0].self_attn, nn.MultiheadAttention)
    assert isinstance(plans.dense.get_submodule("0.self_attn.in_proj"), nn.Linear)


PRUNED = {"0": "eliminated[recovery=variance,keep=0.5]"}


def answered(dense: list[float], pruned: list[float], training: bool = False, scored: bool = True) -> Plans:
    """Plans whose networks have these calibration samples right."""
    none: Any = None
    subject: Any = SimpleNamespace(training=training)
    settings = Settings("fp32", "nchw", "eager")
    plans = Plans(subject, settings, 1, none, none, Journal(None), none, none, scored=scored)
    plans._known |= {(plans.key(one), False): torch.tensor(right) for one, right in (({}, dense), (PRUNED, pruned))}
    return plans


def test_the_standard_error_of_a_loss_is_that_of_the_samples_that_are_answered_differently() -> None:
    dense, pruned = [1.0] * 90 + [0.0] * 10, [1.0] * 84 + [0.0] * 13 + [1.0] * 3
    plans = answered(dense, pruned)
    assert (plans.accuracy({}), plans.accuracy(PRUNED)) == (90.0, 87.0)
    # McNemar: of 100 samples, the dense network alone has 6 right, the pruned one alone 3
    assert plans.standard_error(PRUNED) == pytest.approx(sqrt(6 + 3 - (6 - 3) ** 2 / 100))
    plans._known.clear()
    assert plans.standard_error(PRUNED) > 0, "the journal knows it"


def test_a_loss_without_doubt_has_no_standard_error() -> None:
    dense, pruned = [1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]
    assert answered(dense, pruned).standard_error({"0": "fused"}) == 0, "the results are those of dense"
    assert answered(dense, dense).standard_error(PRUNED) == 0
    assert answered(dense, pruned, training=True).standard_error(PRUNED) == 0
    assert answered(dense, pruned, scored=False).standard_error(PRUNED) == 0
