"""ReLUs that follow circulant layers, computed in the last kernel of the layer: results do not change."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from lamina.accelerate.common.chains import chains
from lamina.accelerate.common.traced import trace
from lamina.accelerate.convert import Where, has_hooks, put
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UnsupportedError

FUSING = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d)
"""Layers that can compute a ReLU."""


class FusedReLU(nn.Identity):
    """In place of a ReLU that the layer before it, of this name, computes."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def extra_repr(self) -> str:
        """The layer."""
        return f"computed by {self.layer}"


def fuse_relus(model: nn.Module, where: Where | None = None) -> None:
    """Let circulant layers compute the ReLU modules that alone read their outputs; `FusedReLU` replaces these.

    Modules stay that have hooks, that are called several times, or whose input other code reads as well, as far as
    `torch.fx` sees. A model that it cannot trace stays as it is.

    Args:
        model: changed in place.
        where: ``where(name, relu)`` says which ReLUs; all, if left out.
    """
    if not any(isinstance(one, FUSING) for one in model.modules()):
        return
    try:
        found = list(chains(trace(model)))
    except UnsupportedError:
        return
    for chain in found:
        for layer, relu in pairwise(link for link in chain if not isinstance(link.module, nn.Identity)):
            if not isinstance(layer.module, FUSING) or type(relu.module) is not nn.ReLU:
                continue
            if layer.path is None or relu.path is None or has_hooks(layer.module) or has_hooks(relu.module):
                continue
            if where is None or where(relu.path, relu.module):
                layer.module.activation = "relu"
                put(model, relu.path, FusedReLU(layer.path))
