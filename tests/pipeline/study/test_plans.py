"""Networks by choices, and what a choice damages."""

import torch
from torch import nn

import lamina
from lamina.pipeline.study.plans import _with_dense_layers, gathering


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
