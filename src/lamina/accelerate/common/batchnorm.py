"""Batch normalization folded into the layer before it, for inference.

``s (W x + b - m) + t = (s W) x + (s (b - m) + t)`` with ``s = g / sqrt(v + eps)``, where ``m`` and ``v`` are running
statistics, ``g`` and ``t`` the weight and bias of the normalization (Jacob et al., CVPR 2018, section 3.2).
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from lamina.accelerate.common.traced import Traced, trace
from lamina.errors import UnsupportedError

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fold_batchnorm(model: nn.Module) -> dict[str, str]:
    """Fold each batch normalization with running statistics into the layer before it, in place.

    Identities take the places of normalizations. In evaluation mode the network computes the same, up to rounding; it
    cannot train as before. A linear layer is followed by a normalization of its features: ``(N, C)``.

    Returns:
        The paths of normalizations, by that of the layer that each is folded into.

    Raises:
        UnsupportedError: there is none to fold, or `torch.fx` cannot trace the network.
    """
    if not any(isinstance(one, NORMS) for one in model.modules()):
        raise UnsupportedError("the network has no BatchNorm to fold")
    found = _pairs(trace(model))
    owners = Counter(id(p) for one in model.modules() for p in one.parameters(recurse=False))
    pairs = {
        layer: norm
        for layer, norm in found.items()
        if not any(owners[id(p)] > 1 for name in (layer, norm) for p in model.get_submodule(name).parameters())
    }
    if not pairs:
        raise UnsupportedError("no BatchNorm alone reads what a convolution or a linear layer computes")
    for layer, norm in pairs.items():
        _fold(model.get_submodule(layer), model.get_submodule(norm))
        parent, _, last = norm.rpartition(".")
        setattr(model.get_submodule(parent), last, nn.Identity())
    return pairs


def _pairs(traced: Traced) -> dict[str, str]:
    """Layers whose outputs a normalization alone reads, both called once."""
    found: dict[str, str] = {}
    for node in traced.graph.nodes:
        norm, before = traced.module(node), node.args[0] if node.args else None
        if type(norm) not in NORMS or not isinstance(before, torch.fx.Node) or traced.reader(before) != node:
            continue
        layer = traced.module(before)
        if type(layer) not in LAYERS or not {str(node.target), str(before.target)} <= traced.once:
            continue
        fits = norm.running_mean is not None and norm.num_features == len(layer.weight)  # type: ignore[union-attr,arg-type]
        if fits and not any(getattr(one, hooks) for one in (layer, norm) for hooks in HOOKS):
            found[str(before.target)] = str(node.target)
    return found


@torch.no_grad()
def _fold(layer: nn.Module, norm: nn.Module) -> None:
    """In float64, so that each weight is rounded once."""
    weight, bias = layer.get_parameter("weight"), layer.bias
    mean, variance = norm.get_buffer("running_mean").double(), norm.get_buffer("running_var").double()
    scale = (variance + norm.eps).rsqrt()  # type: ignore[operator]
    if norm.weight is not None:
        scale = scale * norm.get_parameter("weight").double()
    shift = (0 if bias is None else layer.get_parameter("bias").double()) - mean
    shift = shift * scale + (0 if norm.bias is None else norm.get_parameter("bias").double())
    scaled = weight.double() * scale.view(-1, *[1] * (weight.dim() - 1))
    for name, value in (("weight", scaled), ("bias", shift)):
        setattr(layer, name, nn.Parameter(value.to(weight.dtype), requires_grad=weight.requires_grad))

