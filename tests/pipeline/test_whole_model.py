"""Which converted layers the whole model keeps."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.activation_fusion import FusedActivation
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.select import Selector
from lamina.pipeline import whole_model
from lamina.pipeline.convert import convert
from lamina.record import Selection

X = torch.randn(3, 16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked of whole models; ``most`` is how many converted layers make one faster."""
    found: dict[str, Any] = {"most": 0, "whats": [], "counts": []}

    def select_whole(dense: nn.Module, model: nn.Module, example: Any, what: str, selector: Any) -> Selection:
        count = sum(isinstance(one, BlockCirculantLinear) for one in set(model.modules()))
        assert not any(isinstance(one, BlockCirculantLinear) for one in dense.modules())
        found["whats"].append(what)
        found["counts"].append(count)
        model(example)
        impl = "converted" if count <= found["most"] else "dense"
        return Selection(impl, f"{count} layers", {"dense": 9.0, "converted": 1.0}, "eager")

    def select(self: Selector, question: str, candidates: Any, call: Any) -> Selection:
        name = next(one for one in candidates if one != "dense")
        saved = call.tensors[0].shape[-1]  # the wider the input, the more a layer saves
        return Selection(name, "faster", {"dense": 100.0, name: 100.0 - saved}, "eager")

    monkeypatch.setattr(whole_model, "select_whole", select_whole)
    monkeypatch.setattr(Selector, "select", select)
    return found


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 48), nn.Linear(48, 16)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("most", "counts", "kept"),
    [
        (4, [4], ["0", "2", "4", "5"]),
        (2, [4, 2], ["2", "5"]),
        (1, [4, 2, 1], ["2"]),
        (0, [4, 2, 1], []),
    ],
)
def test_those_that_save_the_most_stay(asked: dict[str, Any], most: int, counts: list[int], kept: list[str]) -> None:
    asked["most"] = most
    before = net()
    own = dict(before.named_modules())
    model, record = convert(before, Circulant(8), example=X, select="measure")
    assert asked["counts"] == counts and [layer.layer for layer in record.replaced] == kept
    for name, module in model.named_modules():
        if name in kept:
            assert isinstance(module, BlockCirculantLinear)
        elif isinstance(own[name], nn.ReLU) and str(int(name) - 1) in kept:
            assert type(module) is FusedActivation  # which the layer before it computes
        else:
            assert module is own[name]
    assert record.whole is not None and record.whole.impl == ("converted" if kept else "dense")
    left = {str(layer.refusal) for layer in record.skipped if layer.kind == "Linear"}
    assert left == (
        set() if most == 4 else {"the whole model is faster with fewer layers"} if kept
        else {"the whole model is not faster: 4 layers"}
    )  # fmt: skip
    relus = {layer.layer: layer.refusal for layer in record.layers if layer.kind == "ReLU"}
    assert relus == {
        name: f"{int(name) - 1} computes it" if str(int(name) - 1) in kept else "ReLU has no weights" for name in "13"
    }
    assert sum(layer.parameters_after for layer in record.layers if layer.kind == "Linear") == sum(
        one.numel() for name, module in model.named_modules() if name in "0245" and name for one in module.parameters()
    )
    model(X).sum().backward()


def test_a_layer_under_two_names_stays_or_goes_as_one(asked: dict[str, Any]) -> None:
    shared = nn.Linear(32, 32)
    model = nn.Sequential(nn.Linear(16, 32), shared, nn.ReLU(), shared, nn.Linear(32, 16))
    asked["most"] = 1
    model, record = convert(model, Circulant(8), example=X, select="measure")
    assert [layer.layer for layer in record.replaced] == ["1", "3"] and model[1] is model[3]
    assert asked["counts"] == [3, 1]


def test_layers_that_are_replaced_together_are_not_taken_apart(asked: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()).eval()
    asked["most"] = -1
    own = dict(model.named_modules())
    model, record = convert(model, Fusion(), example=X, select="measure")
    assert len(asked["counts"]) == 1 and not record.replaced
    assert all(module is own[name] for name, module in model.named_modules())
