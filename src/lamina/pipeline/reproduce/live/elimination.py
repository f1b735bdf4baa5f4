"""Layers and networks at half of their inputs."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from lamina import run
from lamina.accelerate import convert, tune
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.convert import build
from lamina.accelerate.methods.elimination.reference import swap_order
from lamina.build.models import create
from lamina.pipeline.convert import selector
from lamina.pipeline.reproduce.live.timing import Layer, Timer
from lamina.pipeline.reproduce.measured.deft_networks import DEFT, DENSE, SPARSE
from lamina.pipeline.reproduce.measured.elimination import GATHER, SELECTED, SWAP, VIEW
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

KEEP = 0.5
LAYERS = (
    Layer("conv2", 96, 256, 5, 27),
    Layer("conv3", 256, 384, 3, 13),
    Layer("conv4", 384, 384, 3, 13),
    Layer("conv5", 384, 256, 3, 13),
    Layer("fc6", 9216, 4096),
)
SHAPES = {"alexnet": (3, 224, 224), "cifarnet": (3, 32, 32), "lenet5": (1, 28, 28)}
"""Input of each network of figures 9, 16 and 17 that needs no other data."""


@torch.no_grad()
def _after(first: str, path: str, layer: nn.Module) -> bool:
    """Whether a layer is not the first convolution, which reads the image."""
    return path != first


def layers(scope: Scope) -> Rows:
    """Figures 6 and 10: AlexNet's layers by each implementation."""
    timer, rows = Timer(scope), list[dict[str, Any]]()
    batch = 2 if scope.quick else 128
    config = Eliminated(keep=KEEP, recovery="none")
    chooser = selector(timer.device, "eager", training=False)
    for layer in LAYERS:
        torch.manual_seed(0)
        dense, x = layer.dense().to(timer.device), layer.input(batch).to(timer.device)
        index = torch.arange(0, layer.inputs, 2, device=timer.device)  # times do not depend on which half it is
        prefix = torch.arange(len(index), device=index.device)
        swapped = index.new_tensor(swap_order(index.tolist(), layer.inputs))
        auto, _ = tune(_built(dense, index, config, "auto"), x, chooser, dense=True)
        modules: dict[str, nn.Module] = {
            "dense": dense,
            GATHER: _built(dense, index, config, "gather"),
            SWAP: build(dense, swapped, Eliminated(keep=KEEP, recovery="none", order="swap", impl="swap")),
            VIEW: _built(dense, prefix, config, "slice"),
            SELECTED: auto,
        }
        with run.precision_mode("fp32"):
            for impl, module in modules.items():
                rows.append(
                    {
                        "workload": "alexnet", "layer": layer.name, "phase": "forward", "precision": "fp32",
                        "layout": "nchw", "impl": impl, "batch": batch,
                        **timer.columns(lambda module=module, x=x: module(x)),  # type: ignore[misc]
                    }
                )  # fmt: skip
    return rows


@torch.no_grad()
def networks(scope: Scope) -> Rows:
    """Figures 9, 16 and 17: networks at half of their inputs, and AlexNet with half of its weights in sparse products.

    Networks are untrained: only their time is measured. The first layer stays dense.
    """
    timer, rows = Timer(scope), list[dict[str, Any]]()
    batch = 2 if scope.quick else 128
    for name, shape in SHAPES.items():
        torch.manual_seed(0)
        x = torch.randn(batch, *shape, device=timer.device)
        dense = create(name, 10).to(timer.device).eval()
        first = next(path for path, one in dense.named_modules() if isinstance(one, nn.Conv2d))
        config = Eliminated(keep=KEEP, recovery="none", impl="auto")
        chooser = selector(timer.device, "eager", training=False)
        deft, _ = convert(copy.deepcopy(dense), config, where=partial(_after, first))
        deft, _ = tune(deft, x, chooser, dense=True)
        kinds = {DENSE: dense, DEFT: deft}
        if name == "alexnet":
            kinds[SPARSE] = _sparse(create(name, 10).to(timer.device).eval())
        with run.precision_mode("fp32"):
            for impl, module in kinds.items():
                rows.append(
                    {
                        "workload": name, "layer": "whole", "phase": "forward", "precision": "fp32",
                        "layout": "nchw", "impl": impl, "batch": batch,
                        **timer.columns(lambda module=module, x=x: module(x)),  # type: ignore[misc]
                    }
                )  # fmt: skip
    return rows


class SparseLayer(nn.Module):
    """A convolution or linear layer whose weights of small magnitude are zero, by the library's sparse product."""

    def __init__(self, layer: Any):
        super().__init__()
        self.layer = layer
        weight = layer.weight.detach().flatten(1)
        limit = weight.abs().flatten().kthvalue(max(1, int((1 - KEEP) * weight.numel()))).values
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
            self.weight = torch.where(weight.abs() > limit, weight, 0.0).to_sparse_csr()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return (self.weight @ x.mT).mT + layer.bias
        columns = nn.functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        batch, depth, count = columns.shape
        y = self.weight @ columns.transpose(0, 1).reshape(depth, batch * count)
        height = (x.shape[2] + 2 * layer.padding[0] - layer.kernel_size[0]) // layer.stride[0] + 1
        y = y.view(-1, batch, height, count // height).transpose(0, 1)
        return y if layer.bias is None else y + layer.bias.view(-1, 1, 1)


def _sparse(network: nn.Module) -> nn.Module:
    for path, layer in list(network.named_modules()):
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            parent, _, name = path.rpartition(".")
            setattr(network.get_submodule(parent), name, SparseLayer(layer))
    return network


def _built(dense: nn.Module, index: torch.Tensor, config: Eliminated, impl: Any) -> nn.Module:
    return build(dense, index, Eliminated(keep=config.keep, recovery=config.recovery, impl=impl))
