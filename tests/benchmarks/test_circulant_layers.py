"""Speed-ups are means over layers, each in its better layout, counted as often as the network has it."""

from typing import Any

import pytest

from benchmarks import circulant_layers as layers


def row(
    layer: str, impl: str, us: float, layout: str = "nchw", timing: str = "graph", times: int = 1
) -> dict[str, Any]:
    return {
        "workload": "conv", "layer": layer, "times": times, "precision": "bf16", "impl": impl, "layout": layout,
        "timing": timing, "median_us": us,
    }  # fmt: skip


def test_speedups_are_geometric_means_over_the_better_layouts() -> None:
    rows = [
        row("a", "dense", 8.0), row("a", "dense", 4.0, "nhwc"), row("a", layers.KERNEL, 2.0),
        row("a", layers.KERNEL, 1.0, timing="events"), row("a", layers.CHOSEN, 4.0),
        row("b", "dense", 16.0, times=2), row("b", layers.KERNEL, 1.0, times=2),
    ]  # fmt: skip
    assert layers.speedups(rows, layers.KERNEL) == {"conv bf16": round((2 * 16 * 16) ** (1 / 3), 3)}
    assert layers.speedups(rows, layers.CHOSEN) == {"conv bf16": 1.0}


@pytest.mark.parametrize("layer", layers.LAYERS, ids=lambda layer: layer.name)
def test_dense_and_circulant_layers_have_the_same_sizes(layer: layers.Layer) -> None:
    dense, circulant = layer.dense(), layer.circulant()
    assert circulant.impl == "kernel"
    assert layers.BLOCK_SIZE * sum(p.numel() for p in circulant.parameters()) >= sum(
        p.numel() for p in dense.parameters()
    )
