"""``tune``: converted layers change their implementation where another is faster."""

import torch
from torch import nn

from lamina.accelerate import convert, tune
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.select import DENSE, Cache, Selector

from .test_convert_select import Preferring


def test_each_layer_gets_the_fastest_implementation_and_keeps_its_weights() -> None:
    model, _ = convert(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), Circulant(4))
    weights, x = [model[0].weight, model[2].weight], torch.randn(2, 8)
    before = model(x)
    timer = Preferring("impl=dense")
    tuned, found = tune(model, x, Selector(timer, Cache(None, {}), "eager", training=True))
    assert tuned is model and {*found} == {"0", "2"}
    assert [model[0].impl, model[2].impl] == ["dense", "dense"]
    assert model[0].weight is weights[0] and model[2].weight is weights[1]
    assert torch.allclose(model(x), before, atol=1e-5)
    assert all(DENSE not in selection.times_us for selection in found.values())


def test_the_dense_equivalent_is_a_candidate_where_it_is_wanted() -> None:
    model, _ = convert(nn.Sequential(nn.Linear(8, 8)).eval(), Eliminated(keep=0.5))
    x = torch.randn(2, 8)
    before = model(x)
    tuned, found = tune(model, x, Selector(Preferring(), Cache(None, {}), "eager", training=False), dense=True)
    assert found["0"].impl == DENSE and type(tuned[0]) is nn.Linear
    assert torch.allclose(tuned(x), before, atol=1e-6)


def test_other_modules_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    tuned, found = tune(model, torch.randn(1, 4), Selector(Preferring(), Cache(None, {}), "eager", training=True))
    assert tuned is model and found == {}
