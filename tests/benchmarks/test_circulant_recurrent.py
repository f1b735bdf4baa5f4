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
    monkeypatch.setattr(recurrent, "FEATURES", 6)
    monkeypatch.setattr(recurrent, "STATES", 5)
    make, circulant, shape = recurrent.KINDS[kind]
    layer = circulant.from_dense(make(8).double(), 4, impl=impl)
    x = torch.randn(shape(8), dtype=torch.float64, requires_grad=True)
    ours, theirs = (recurrent.step_of(one, x, x.dtype)()[:2] for one in (layer, layer.to_dense()))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("network", ["lstm", "tdnn"])
def test_layers_of_a_network_follow_one_another(network: str) -> None:
    kinds = [kind for kind in (f"{network} input", network, f"{network} output") if kind in recurrent.KINDS]
    assert [recurrent.part_of(kind) for kind in kinds] == ["input", "hidden", "output"]
    weights = [next(recurrent.KINDS[kind][0](256).parameters()) for kind in kinds]
    assert weights[0].shape[1] == recurrent.FEATURES and weights[2].shape[0] == recurrent.STATES
    assert weights[1].shape[1] == weights[2].shape[1] == 256
    shapes = [recurrent.KINDS[kind][2](256) for kind in kinds]
    assert shapes[1] == shapes[2] and 256 not in shapes[0]
