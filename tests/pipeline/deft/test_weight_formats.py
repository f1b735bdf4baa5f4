"""Formats of weights: suggested by cost or by name, and kept while accuracy stays."""

import copy

import pytest
import torch
from torch import nn

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.weight_only.cost import Rates
from lamina.accelerate.methods.weight_only.nn import WeightOnlyConv, WeightOnlyLinear
from lamina.errors import UsageError
from lamina.pipeline.deft import weight_formats
from lamina.pipeline.deft.weight_formats import Stored, rates_of, store_weights, suggest
from lamina.record import Roofs

SLOW_MEMORY = Rates(read_gbs=1, product_gflops=1e6)
SLOW_PRODUCTS = Rates(read_gbs=1e6, product_gflops=1)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.Linear(64, 10)).eval()


X = torch.zeros(1, 3, 8, 8)


def no_rates() -> Rates:
    raise AssertionError("nothing is to be measured where no kernel runs")


def test_without_kernels_layers_stay_dense_and_nothing_is_measured() -> None:
    found = suggest(network(), X, "auto", no_rates, "fp32")
    assert list(found) == ["0", "3", "4"] and not any(stored.format for stored in found.values())
    assert "convolution dequantizes its weights in memory" in found["0"].reason
    assert "to fp32 on cpu" in found["3"].reason


def test_with_kernels_the_cost_model_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_formats, "chosen", lambda impl, x, packed: "kernel")
    found = suggest(network(), X, "auto", lambda: SLOW_MEMORY, "bf16")
    assert found["0"].format is None and found["3"].format and found["4"].format
    assert 0 < found["3"].error < 0.05 and "predicted" in found["3"].reason  # type: ignore[operator]
    found = suggest(network(), X, "auto", lambda: SLOW_PRODUCTS, "bf16")
    assert not any(stored.format for stored in found.values())


def test_the_nearest_format_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_formats, "chosen", lambda impl, x, packed: "kernel")
    model = nn.Sequential(nn.Linear(64, 64))
    with torch.no_grad():  # powers of two over a wide range: many bits of exponent, none of mantissa
        model[0].weight.copy_(torch.exp2(torch.randint(-40, 40, (64, 64)).float()))
    found = suggest(model, torch.zeros(1, 64), "auto", lambda: SLOW_MEMORY, "fp32")["0"]
    assert found.format == "e7m0" and found.error == 0


def test_a_named_format_is_for_every_layer_that_takes_it() -> None:
    model, _ = convert(network(), Eliminated(keep=0.5), lambda name, _: name == "4")
    found = suggest(model, X, "deft16", no_rates, "fp32")
    assert [found[name].format for name in ("0", "3", "4")] == ["deft16", "deft16", None]
    assert "neither Linear nor a convolution" in found["4"].reason
    assert not any(stored.format for stored in suggest(model, X, "none", no_rates, "fp32").values())
    with pytest.raises(UsageError, match="did you mean 'e4m3'"):
        suggest(model, X, "e4m33", no_rates, "fp32")


def test_formats_that_cost_too_much_are_taken_back() -> None:
    model = network()
    suggested = suggest(model, X, "e3m4", no_rates, "fp32")
    before = copy.deepcopy(model.state_dict())

    def accuracy(tried: nn.Module) -> float:
        return 40.0 if isinstance(tried.get_submodule("3"), WeightOnlyLinear) else 90.0

    found = store_weights(model, suggested, accuracy, min_accuracy=89.0)
    assert [found[name].format for name in ("0", "3", "4")] == ["e3m4", None, "e3m4"]
    assert "accuracy 40.00 %; the limit is accuracy 89.00 %" in found["3"].reason
    assert isinstance(model[0], WeightOnlyConv) and type(model[3]) is nn.Linear
    assert torch.equal(model[3].weight, before["3.weight"])
    assert store_weights(model, {"3": Stored(None, "dense")}, accuracy, 0) == {"3": Stored(None, "dense")}


def test_rates_are_those_measured() -> None:
    roofs = Roofs("test", "2026-01-01", 1, {"torch": "0"}, 10.0, 8.0, {"bf16": 100.0}, 5.0, 5.0)
    assert (rates_of(roofs, "bf16").read_gbs, rates_of(roofs, "bf16").product_gflops) == (8.0, 100.0)
    with pytest.raises(UsageError, match="fp16"):
        rates_of(roofs, "fp16")
