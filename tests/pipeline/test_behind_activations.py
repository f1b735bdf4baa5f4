"""Which layers behind activations compute them."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.select import Selector
from lamina.pipeline import behind_activations, whole_model
from lamina.pipeline.convert import convert
from lamina.record import Selection

X = torch.randn(3, 16)
SELECTED, FUSED = "circulant[block_size=8,impl=reference]", "circulant[block_size=8,impl=fused_rows]"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked of whole models; ``faster`` is what comes out, ``alone`` the time of the fused layers."""
    found: dict[str, Any] = {"faster": "converted", "alone": 60.0, "whats": [], "relus": []}

    def select(self: Selector, question: str, candidates: Any, call: Any) -> Selection:
        return Selection(SELECTED, "faster", {"dense": 100.0, SELECTED: 50.0, FUSED: found["alone"]}, "eager")

    def select_whole(selected: nn.Module, other: nn.Module, example: Any, what: str, selector: Any) -> Selection:
        found["whats"].append(what)
        found["relus"] = [any(isinstance(one, nn.ReLU) for one in each.modules()) for each in (selected, other)]
        torch.testing.assert_close(selected(example), other(example))
        return Selection(found["faster"], "", {"dense": 9.0, "converted": 8.0}, "eager")

    monkeypatch.setattr(behind_activations, "select_whole", select_whole)
    keep = Selection("converted", "", {"dense": 9.0, "converted": 1.0}, "eager")
    monkeypatch.setattr(whole_model, "select_whole", lambda *_: keep)
    monkeypatch.setattr(Selector, "select", select)
    return found


def converted() -> tuple[Any, dict[str, Selection | None]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 48))
    model, record = convert(model, Circulant(8), example=X, select="measure")
    model(X).sum().backward()
    return model, {layer.layer: layer.selection for layer in record.replaced}


def test_layers_behind_activations_compute_them_where_the_model_is_faster(asked: dict[str, Any]) -> None:
    model, selections = converted()
    assert asked["whats"] == ["activations read by 2, 4"] and asked["relus"] == [False, False]
    assert [model[i].impl for i in (0, 2, 4)] == ["reference", "fused_rows", "fused_rows"]
    assert [model[i].input_activation for i in (0, 2, 4)] == [None, "relu", "relu"]
    assert [model[i].layer for i in (1, 3)] == ["2", "4"]
    chosen = selections["2"]
    assert chosen is not None and chosen.impl == FUSED and chosen.times_us[SELECTED] == 50.0
    assert chosen.reason == "computes the activation of its inputs: the whole model 8 us < 9 us"
    assert selections["0"] is not None and selections["0"].impl == SELECTED


@pytest.mark.parametrize(("faster", "alone", "times"), [("dense", 60.0, 1), ("converted", 80.0, 0)])
def test_otherwise_layers_stay_as_selected(asked: dict[str, Any], faster: str, alone: float, times: int) -> None:
    asked.update(faster=faster, alone=alone)
    model, selections = converted()
    assert len(asked["whats"]) == times
    assert [model[i].impl for i in (0, 2, 4)] == ["reference"] * 3 and [model[i].layer for i in (1, 3)] == ["0", "2"]
    assert all(each is not None and each.impl == SELECTED for each in selections.values())
