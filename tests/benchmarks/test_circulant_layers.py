"""Speed-ups are means over layers, each in its better layout, counted as often as the network has it."""

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import circulant_layers as layers
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d

KERNEL, CHOSEN = layers.kernel(64), layers.chosen(64)


def row(
    layer: str, impl: str, us: float, layout: str = "nchw", timing: str = "graph", times: int = 1, k: int = 64
) -> dict[str, Any]:
    return {
        "workload": "conv", "layer": layer, "times": times, "precision": "bf16", "impl": impl, "layout": layout,
        "timing": timing, "median_us": us, "phase": "step", "block_size": k,
    }  # fmt: skip


def test_speedups_are_geometric_means_over_the_better_layouts() -> None:
    rows = [
        row("a", "dense", 8.0), row("a", "dense", 4.0, "nhwc"), row("a", KERNEL, 2.0),
        row("a", KERNEL, 1.0, timing="events"), row("a", CHOSEN, 4.0),
        row("b", "dense", 16.0, times=2), row("b", KERNEL, 1.0, times=2),
    ]  # fmt: skip
    assert layers.speedups(rows, layers.kernel) == {"conv bf16": round((2 * 16 * 16) ** (1 / 3), 3)}
    assert layers.speedups(rows, layers.chosen) == {"conv bf16": 1.0}


def test_sums_count_layers_that_stay_dense_on_both_sides() -> None:
    rows = [
        row("alexnet conv1", "dense", 10.0), row("alexnet conv1", CHOSEN, 10.0),
        row("alexnet conv2", "dense", 30.0, times=2), row("alexnet conv2", KERNEL, 5.0, times=2),
        row("alexnet conv2", CHOSEN, 5.0, times=2), row("alexnet conv2", "dense", 30.0, times=2, k=16),
        row("alexnet conv2", layers.chosen(16), 15.0, times=2, k=16),
    ]  # fmt: skip
    assert layers.sums(rows) == {"alexnet conv bf16 k=64": 3.5, "alexnet conv bf16 k=16": 2.0}
    assert layers.speedups(rows, layers.chosen) == {"conv bf16": 6.0}
    first = {layer.name for layer in layers.LAYERS if layer.stays_dense}
    assert first == {"alexnet conv1", "vgg16 conv1_1"}


@pytest.mark.parametrize("layer", layers.LAYERS, ids=lambda layer: layer.name)
def test_dense_and_circulant_layers_have_the_same_sizes(layer: layers.Layer) -> None:
    dense, circulant = layer.dense(), layer.circulant()
    assert circulant.impl == "kernel"
    assert layers.BLOCK_SIZE * sum(p.numel() for p in circulant.parameters()) >= sum(
        p.numel() for p in dense.parameters()
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_errors_of_weight_gradients_are_told_too(wrong: bool) -> None:
    layer = BlockCirculantConv2d(8, 6, 3, padding=1, bias=False, block_size=4, impl="reference")
    if wrong:
        layer.weight.register_hook(lambda g: 2 * g if g.dtype == torch.float32 else g)
    x = torch.randn(2, 8, 5, 4, requires_grad=True)
    gy = torch.randn(2, 6, 5, 4)
    assert (layers.error_of(layer, x, gy) < 1e-5) == (not wrong)
    assert layers.error_of(nn.Conv2d(8, 6, 3, padding=1, bias=False), x, gy) < 1e-5


def test_printed_means_stand_beside_those_of_the_layers_in_fp32() -> None:
    some = [
        row("alexnet conv2", "dense", 8.0), row("alexnet conv2", KERNEL, 2.0),
        row("alexnet conv3", "dense", 8.0, times=3), row("alexnet conv3", KERNEL, 4.0, times=3),
        row("alexnet fc6", "dense", 9.0), row("alexnet fc6", KERNEL, 3.0),
    ]  # fmt: skip
    told = layers.beside([one | {"precision": "fp32"} for one in some] + some)
    assert [(one["layer"], one["ours"]) for one in told if one["ours"]] == [
        ("AlexNet convolutions", 3.0),  # each configuration once
        ("AlexNet fully-connected layers", 3.0),
    ]
    assert len(told) == 5


def test_forward_passes_are_held_to_the_time_of_their_bytes_in_the_better_layout() -> None:
    layer = layers.Layer("B", "B", 2, 128, 64, 3, 5)
    x, w, y = 2 * 25 * 128, 64 * 2 * 9, 2 * 25 * 64  # numbers; weights are one of 64 rows of a block
    assert layer.moved("bf16") == ((x + w + y) * 4, (x + w + y) * 2)
    assert layer.moved("fp32") == ((x + w + y) * 8, (x + w + y) * 4)
    forward = {"phase": "forward", "floor_us": 2.0}
    rows = [row("B", KERNEL, us, layout) | forward for us, layout in ((6.0, "nchw"), (5.0, "nhwc"))]
    assert layers.over_floors([*rows, row("B", KERNEL, 1.0)]) == {"B bf16": 2.5}
    assert layers.speedups([*rows, row("B", "dense", 8.0), row("B", KERNEL, 4.0)], layers.kernel) == {
        "conv bf16": 2.0
    }
