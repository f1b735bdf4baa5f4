"""Models as wholes: their twins, which a conversion leaves as they are, and what their questions depend on."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import lamina
from lamina.accelerate.select import DENSE, Cache, Selector, one_by_one
from lamina.accelerate.select.whole import select_whole, twin
from lamina.record import Selection


class Odd(nn.Module):
    """Children that refuse copies."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = weight_norm(nn.Linear(8, 8))
        self.traced = torch.jit.trace(nn.Linear(8, 8), torch.randn(2, 8))
        self.scripted = torch.jit.script(nn.ReLU())
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scripted(self.traced(self.normed(x))))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_twins_of_modules_that_refuse_copies() -> None:
    model, x = Odd(), torch.randn(3, 8)
    other = twin(model)
    assert torch.equal(other(x), model(x))
    assert other.normed is not model.normed and other.traced is model.traced
    assert all(one is two for one, two in zip(other.parameters(), model.parameters(), strict=True))
    model.last = nn.Identity()
    assert isinstance(other.last, nn.Linear)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_their_models_are_converted() -> None:
    model, x = Odd(), torch.randn(3, 8)
    model, record = lamina.convert(model, lamina.Circulant(4), example=x, select="measure", limit_s=0.1)  # type: ignore[assignment]
    assert {"normed", "last"} <= {layer.layer.partition(".")[0] for layer in record.layers}
    assert model(x).shape == x.shape


def test_weights_of_another_type_are_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    selector = Selector(one_by_one(lambda step: 1.0), Cache(None, {}), "eager", training=False)

    def select(question: str, *_: object, **__: object) -> Selection:
        asked.add(question)
        return Selection(DENSE, "", {}, "eager")

    monkeypatch.setattr(selector, "select", select)
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)).to(dtype)
        select_whole(model, twin(model), tokens, "no layer", selector)
    assert len(asked) == 2
