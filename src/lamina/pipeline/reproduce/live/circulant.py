"""Training steps of block-circulant layers against dense ones, by batch size and over layers of networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lamina import run
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.pipeline.reproduce.live.timing import Layer, Timer, step_of
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

TABLE = (Layer("A", 8192, 4096), Layer("B", 256, 512, 3, 14), Layer("C", 1024, 1024))
SMALL = (Layer("A", 2048, 1024), Layer("B", 64, 128, 3, 14), Layer("C", 1024, 1024))
"""Table 7.3, and a version with a fourth of the inputs and outputs of A and B."""
NETWORKS = (
    Layer("alexnet conv3", 256, 384, 3, 13),
    Layer("alexnet conv4", 384, 384, 3, 13),
    Layer("alexnet fc7", 4096, 4096),
    Layer("vgg16 conv4_2", 512, 512, 3, 28),
    Layer("vgg16 conv5_1", 512, 512, 3, 14),
    Layer("vgg16 fc7", 4096, 4096),
)
"""The layers with the most weights of each group of figure 7.7."""
BLOCK_SIZE = 64


def by_batch(scope: Scope) -> Rows:
    """Figure 7.6: layers of table 7.3 at several batch sizes and block sizes."""
    batches = (1, 4, 16) if scope.quick else (16, 32, 64, 128, 256, 512, 1024)
    blocks = (BLOCK_SIZE,) if scope.quick else (16, 32, 64)
    return [
        row | {"block_size": block_size}
        for layer in (SMALL if scope.quick else TABLE)
        for batch in batches
        for block_size in (0, *blocks)
        for row in _rows(layer, batch, block_size, scope)
    ]


def over_layers(scope: Scope) -> Rows:
    """Figure 7.7: large layers of AlexNet and VGG-16 at blocks of 64."""
    batch = 2 if scope.quick else 64
    return [
        row | {"times": 1} for layer in NETWORKS for block_size in (0, BLOCK_SIZE)
        for row in _rows(layer, batch, block_size, scope)
    ]  # fmt: skip


def _rows(layer: Layer, batch: int, block_size: int, scope: Scope) -> Iterator[dict[str, Any]]:
    """One row: the dense layer where ``block_size`` is 0. On a CPU circulant layers run by their reference."""
    torch.manual_seed(0)
    timer = Timer(scope)
    impl: Any = "kernel" if timer.device.type == "cuda" else "reference"
    sizes = {"block_size": block_size, "bias": False, "impl": impl}
    module: Any = layer.dense()
    if block_size and layer.kernel:
        module = BlockCirculantConv2d(layer.inputs, layer.outputs, layer.kernel, 1, layer.kernel // 2, **sizes)
    elif block_size:
        module = BlockCirculantLinear(layer.inputs, layer.outputs, **sizes)
    with run.precision_mode("fp32"):
        step = step_of(module.to(timer.device), layer.input(batch).to(timer.device))
        yield {
            "workload": layer.name.split()[0], "layer": layer.name, "phase": "step", "precision": "fp32",
            "layout": "nchw", "batch": batch,
            "impl": f"circulant[block_size={block_size},impl={impl}]" if block_size else "dense",
            **timer.columns(step),
        }  # fmt: skip
