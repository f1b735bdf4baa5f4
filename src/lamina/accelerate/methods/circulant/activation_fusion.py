"""Activations beside circulant layers, computed in a kernel of the layer: results do not change.

A layer of ``impl="fused_rows"`` computes the ReLU or GELU of its inputs as it reads them, and multiplies their gradient
by its derivative as it writes it. Others compute the ReLU of their outputs, in their last kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from lamina.accelerate.common.chains import Link, chains
from lamina.accelerate.common.traced import Traced, trace
from lamina.accelerate.convert import Where, has_hooks, put
from lamina.accelerate.methods.circulant.activations import InputActivation, input_activation_of
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv1d, BlockCirculantConv2d, BlockCirculantLinear
from lamina.errors import UnsupportedError

FUSING = (BlockCirculantLinear, BlockCirculantConv1d, BlockCirculantConv2d)
"""Layers that can compute an activation."""

MAX_GELU_BLOCK = 64
"""The registers of a thread do not hold larger blocks beside the derivatives of GELU: rows of 16 bits lose by it."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Their children are often called by the module around them."""

Named = tuple[str, Any]
"""A layer with its path."""


class FusedActivation(nn.Identity):
    """In place of an activation that a layer beside it, of this name, computes."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def extra_repr(self) -> str:
        """The layer."""
        return f"computed by {self.layer}"


def fuse_activations(model: nn.Module, where: Where | None = None) -> None:
    """Let circulant layers compute the activation modules between them; `FusedActivation` replaces these.

    A layer computes the activation of its inputs if nothing else reads it, and the ReLU of its outputs if nothing else
    reads them, as far as `torch.fx` sees. Activations stay that have hooks or are called several times. Of a model that
    `torch.fx` cannot trace, the modules are traced each for itself.

    Args:
        model: changed in place.
        where: ``where(name, activation)`` says which activations; all, if left out.
    """
    for path, writer, reader in beside_activations(model, where):
        module = model.get_submodule(path)
        activation = input_activation_of(module)
        if reader is not None and _computes(reader[1], activation):
            layer, reader[1].input_activation = reader[0], activation
        elif writer is not None and activation == "relu":
            layer, writer[1].activation = writer[0], activation
        else:
            continue
        put(model, path, FusedActivation(layer).train(module.training))


def beside_activations(model: nn.Module, where: Where | None = None) -> list[tuple[str, Named | None, Named | None]]:
    """The activations that a layer could compute: the path, and the circulant layers before and after, if there are.

    Args:
        model: is traced.
        where: as `fuse_activations` takes it.
    """
    if not any(isinstance(one, FUSING) for one in model.modules()):
        return []
    found = []
    for chain in _chains(model):
        links = [link for link in chain if not _is_identity(link.module)]
        for before, link, after in zip([None, *links], links, [*links[1:], None], strict=False):
            path = link.path
            if input_activation_of(link.module) is None or path is None or has_hooks(link.module):
                continue
            if where is None or where(path, link.module):
                found.append((path, _fusing(before), _fusing(after)))
    return found


def _chains(model: nn.Module) -> Iterator[list[Link]]:
    """The chains of a model or, if `torch.fx` cannot trace it, of the largest of its modules that it can trace."""
    whole = _traced(model)
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for prefix, part in _parts(model) if whole is None else [("", whole)]:
        for chain in chains(part):
            yield [
                Link(link.module, None if link.path is None or uses[id(link.module)] > 1 else prefix + link.path)
                for link in chain
            ]


def _parts(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, Traced]]:
    """The largest modules within a model that `torch.fx` can trace and that call their children themselves."""
    for name, child in model.named_children():
        if isinstance(child, FUSING) or not any(isinstance(one, FUSING) for one in child.modules()):
            continue
        traced = None if isinstance(child, CONTAINERS) else _traced(child)
        if traced is None:
            yield from _parts(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", traced


def _traced(module: nn.Module) -> Traced | None:
    try:
        return trace(module)
    except UnsupportedError:
        return None


def _computes(layer: Any, activation: InputActivation | None) -> bool:
    """Whether a layer computes an activation of its inputs faster than it is computed alone."""
    return layer.impl == "fused_rows" and (activation == "relu" or layer.block_size <= MAX_GELU_BLOCK)


def _is_identity(module: nn.Module) -> bool:
    """Whether a module returns what it gets, as dropout of nothing does."""
    return isinstance(module, nn.Identity) or (type(module) is nn.Dropout and module.p == 0)


def _fusing(link: Link | None) -> Named | None:
    """The path and module of a layer that can compute an activation beside it."""
    if link is None or link.path is None or not isinstance(link.module, FUSING) or has_hooks(link.module):
        return None
    return link.path, link.module
