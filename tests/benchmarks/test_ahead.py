"""Candidates are compiled for every layer that is asked, and none is timed or changed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import ahead, circulant_recurrent
from benchmarks.circulant_layers import LAYERS, Layer, candidates

CPU = torch.device("cpu")
SMALL = [replace(one, batch=2, inputs=8, outputs=8, size=4, block_size=4) for one in LAYERS if one.name in "BC"]


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.name)
def test_layers_in_every_precision_and_layout(layer: Layer) -> None:
    made = list(candidates(layer, CPU))
    assert len(made) == 3 * len(layer.layouts)
    assert {module.impl for _, module, _ in made} == {"auto"}
    before = [module.weight.detach().clone() for _, module, _ in made]
    ahead.compile_candidates(made, CPU, "eager")
    assert all(torch.equal(module.weight, weight) for (_, module, _), weight in zip(made, before, strict=True))


@pytest.mark.parametrize("kind", ["lstm", "tdnn"])
def test_recurrent_layers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("BATCH", 2), ("STEPS", 3), ("FRAMES", 9), ("BLOCK_SIZE", 4)):
        monkeypatch.setattr(circulant_recurrent, name, size)
    _, layer, x = circulant_recurrent.made(kind, 8, "fp32", CPU)
    assert layer.impl == "auto"
    ahead.compile_candidates([("fp32", layer, x)], CPU, "eager")
