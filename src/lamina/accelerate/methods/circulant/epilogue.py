"""ReLUs that follow circulant layers, computed in the last kernel of the layer: results do not change."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from lamina.accelerate.common.chains import chains
from lamina.accelerate.common.traced import trace
from lamina.accelerate.convert import has_hooks, put
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UnsupportedError

FUSING = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d)
"""Layers that can compute a ReLU."""


def fuse_relus(model: nn.Module) -> dict[str, str]:
    """Let circulant layers compute the ReLU modules that alone read their outputs; identities replace these.

    Modules stay that have hooks, that are called several times, or that other code reads as well, as far as `torch.fx`
    sees. A model that it cannot trace stays as it is.

    Returns:
        By the name of each ReLU, that of the layer that computes it.
    """
    if not any(isinstance(one, FUSING) for one in model.modules()):
        return {}
    try:
        found = list(chains(trace(model)))
    except UnsupportedError:
        return {}
    fused: dict[str, str] = {}
    for chain in found:
        links = [link for link in chain if type(link.module) is not nn.Identity]
        for first, second in pairwise(links):
            if not isinstance(first.module, FUSING) or type(second.module) is not nn.ReLU:
                continue
            if first.path is None or second.path is None or any(has_hooks(one.module) for one in (first, second)):
                continue
            first.module.activation = "relu"
            put(model, second.path, nn.Identity())
            fused[second.path] = first.path
    return fused
