"""Steps of every kind of layer have the gradients of the dense one, and slower layers are told."""

import pytest
import torch

from benchmarks import circulant_recurrent as recurrent


def test_speeds_are_of_what_was_chosen() -> None:
    common = {"layer": "lstm 8", "precision": "fp32", "timing": "graph"}
    rows = [
        common | {"impl": "dense", "median_us": 6.0},
        common | {"impl": "circulant[block_size=64,impl=kernel]", "median_us": 2.0},
        common | {"impl": "circulant[block_size=64]", "median_us": 4.0},
        common | {"impl": "circulant[block_size=64]", "median_us": 1.0, "timing": "events"},
        common | {"impl": "dense", "median_us": 3.0, "layer": "lstm 9"},
    ]
    assert recurrent.speeds(rows) == {"lstm 8 fp32": 1.5}


@pytest.mark.parametrize("kind", recurrent.KINDS)
@pytest.mark.parametrize("impl", ["reference", "dense"])
def test_a_step_has_the_gradients_of_the_dense_layer(kind: str, impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "BATCH", 2)
    monkeypatch.setattr(recurrent, "STEPS", 3)
    monkeypatch.setattr(recurrent, "FRAMES", 9)
    make, circulant, shape = recurrent.KINDS[kind]
    layer = circulant.from_dense(make(8).double(), 4, impl=impl)
    x = torch.randn(shape(8), dtype=torch.float64, requires_grad=True)
    ours, theirs = (recurrent.step_of(one, x, x.dtype)()[:2] for one in (layer, layer.to_dense()))
    torch.testing.assert_close(ours, theirs)
