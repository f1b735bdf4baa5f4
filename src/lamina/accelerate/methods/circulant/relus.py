"""ReLUs beside circulant layers, computed in a kernel of the layer: results do not change.

A layer of ``impl="fused_rows"`` computes the ReLU of its inputs as it reads them, and multiplies their gradient by that
of the ReLU as it writes it. Others compute the ReLU of their outputs, in their last kernel.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lamina.accelerate.common.chains import Link, chains
from lamina.accelerate.common.traced import trace
from lamina.accelerate.convert import Where, has_hooks, put
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UnsupportedError

FUSING = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d)
"""Layers that can compute a ReLU."""

Named = tuple[str, Any]
"""A layer with its path."""


class FusedReLU(nn.Identity):
    """In place of a ReLU that a layer beside it, of this name, computes."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def extra_repr(self) -> str:
        """The layer."""
        return f"computed by {self.layer}"


def fuse_relus(model: nn.Module, where: Where | None = None) -> None:
    """Let circulant layers compute the ReLU modules between them; `FusedReLU` replaces these.

    A layer computes the ReLU of its inputs if nothing else reads it, and the ReLU of its outputs if nothing else reads
    them, as far as `torch.fx` sees. ReLUs stay that have hooks or are called several times. A model that `torch.fx`
    cannot trace stays as it is.

    Args:
        model: changed in place.
        where: ``where(name, relu)`` says which ReLUs; all, if left out.
    """
    for path, writer, reader in beside_relus(model, where):
        if reader is not None and reader[1].impl == "fused_rows":
            layer, reader[1].input_activation = reader[0], "relu"
        elif writer is not None:
            layer, writer[1].activation = writer[0], "relu"
        else:
            continue
        put(model, path, FusedReLU(layer))


def beside_relus(model: nn.Module, where: Where | None = None) -> list[tuple[str, Named | None, Named | None]]:
    """The ReLU modules that a layer could compute: the path, and the circulant layers before and after, if there are.

    Args:
        model: is traced.
        where: as `fuse_relus` takes it.
    """
    if not any(isinstance(one, FUSING) for one in model.modules()):
        return []
    try:
        traced = list(chains(trace(model)))
    except UnsupportedError:
        return []
    found = []
    for chain in traced:
        links = [link for link in chain if not isinstance(link.module, nn.Identity)]
        for before, relu, after in zip([None, *links], links, [*links[1:], None], strict=False):
            path = relu.path
            if type(relu.module) is not nn.ReLU or path is None or has_hooks(relu.module):
                continue
            if where is None or where(path, relu.module):
                found.append((path, _fusing(before), _fusing(after)))
    return found


def _fusing(link: Link | None) -> Named | None:
    """The path and module of a layer that can compute a ReLU beside it."""
    if link is None or link.path is None or not isinstance(link.module, FUSING) or has_hooks(link.module):
        return None
    return link.path, link.module
