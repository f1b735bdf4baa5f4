"""``convert`` with a selector: each layer is timed in place, and keeps its dense module unless another is faster."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from lamina.accelerate import configuration, convert
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.accelerate.methods.weight_only import WeightOnly
from lamina.accelerate.registry import CELLS
from lamina.accelerate.select import DENSE, Cache, Selector
from lamina.errors import UsageError
from lamina.record import Selection, Timing
from lamina.spec import Method


class Preferring:
    """A timer that runs each step once and says that names with a word in them are faster than dense, or slower."""

    def __init__(self, word: str = "") -> None:
        self.word, self.seen = word, list[tuple[str, ...]]()

    def __call__(self, steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        self.seen.append(tuple(steps))
        for step in steps.values():
            step()
        us = {name: 10.0 if name == DENSE else 5.0 if self.word and self.word in name else 20.0 for name in steps}
        return {name: Timing("cpu", "-", one, one, one, 1) for name, one in us.items()}


def selector(timer: Preferring, training: bool = True) -> Selector:
    return Selector(timer, Cache(None, {}), "eager", training)


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 16)
    )


X = torch.randn(2, 4, 8, 8)


def test_the_faster_implementation_is_in_the_model() -> None:
    net, timer, seen = model(), Preferring("impl=dense"), dict[str, Selection]()
    net, record = convert(net, Circulant(4), example=X, selector=selector(timer), progress=seen.__setitem__)
    for name in ("0", "4", "6"):
        layer = next(layer for layer in record.replaced if layer.layer == name)
        assert layer.selection == seen[name]
        assert layer.selection.impl == "circulant[block_size=4,impl=dense]"
        assert set(layer.selection.times_us) >= {DENSE, "circulant[block_size=4,impl=dense]"}
        assert net.get_submodule(name).impl == "dense"
    assert net(X).shape == (2, 16)


@pytest.mark.parametrize("method", CELLS)
def test_a_layer_that_gets_no_faster_stays_the_very_module(method: str) -> None:
    net = model().train(method not in ("weight-only", "fused"))
    before = dict(net.named_modules())
    options = {"circulant": (("block_size", 4),), "eliminated": (("keep", 0.5),)}.get(method, ())
    config = configuration(Method(method, options=options))
    _, record = convert(net, config, example=X, selector=selector(Preferring(), training=net.training))
    assert all(module is before[name] for name, module in net.named_modules())
    assert not record.replaced
    kept = [layer for layer in record.layers if layer.selection is not None]
    if method == "sparse":  # nothing to compare with on a CPU
        assert not kept and "the kernels do not support" in str(record.layers[0].refusal)
    else:
        assert kept
    for layer in kept:
        assert layer.selection is not None and layer.selection.impl == DENSE
        assert layer.refusal == layer.selection.reason and "dense: 10 us < " in layer.refusal


def test_layers_of_the_same_sizes_are_timed_once() -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    timer = Preferring("impl=dense")
    _, record = convert(net, Circulant(4), example=torch.randn(2, 16), selector=selector(timer))
    assert len(timer.seen) == 2  # the first layer needs no gradient of its input
    assert all(isinstance(layer, BlockCirculantLinear) for layer in net) and len(record.replaced) == 3
    assert len({id(layer.weight) for layer in net}) == 3


def test_a_layer_that_the_example_does_not_reach_keeps_its_module() -> None:
    net = nn.ModuleDict({"used": nn.Linear(8, 8), "unused": nn.Linear(8, 8)})

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.parts["used"](x)
            return y

    _, record = convert(Net(), Circulant(4), example=torch.randn(2, 8), selector=selector(Preferring("impl=dense")))
    assert {layer.layer: layer.refusal for layer in record.layers} == {
        "parts.used": None,
        "parts.unused": "the example did not reach it, or not as dense tensors",
    }


def test_stored_weights_are_not_selected_for_training() -> None:
    _, record = convert(model(), WeightOnly(), example=X, selector=selector(Preferring("weight-only")))
    assert any("do not train" in str(layer.refusal) for layer in record.layers) and not record.replaced


def test_a_selector_needs_an_example() -> None:
    with pytest.raises(UsageError, match="example="):
        convert(model(), Circulant(4), selector=selector(Preferring()))
