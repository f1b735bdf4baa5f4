"""A traced network: the calls of its layers, and the tensors between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lamina.errors import UnsupportedError
from lamina.spec import ResolvedLayer, Shape


@dataclass(frozen=True)
class Slot:
    """A tensor of the network; ``base`` is the slot whose memory it shares, if any."""

    number: int
    shape: Shape
    dtype: torch.dtype
    stride: tuple[int, ...]
    base: int | None = None


@dataclass(frozen=True)
class Call:
    """One call of a layer, which can be repeated on other tensors.

    ``inputs`` and ``outputs`` are slot numbers; ``template`` is the flattened argument list with a
    :class:`Placeholder` for each of ``inputs``.
    """

    resolved: ResolvedLayer
    target: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    template: tuple[Any, ...]
    structure: Any

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.resolved.name

    @property
    def module(self) -> nn.Module | None:
        """The called module, or ``None`` for a function."""
        return self.target if isinstance(self.target, nn.Module) else None

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """Trainable parameters of this call."""
        if self.module is not None:
            return tuple(p for p in self.module.parameters() if p.requires_grad)
        return tuple(leaf for leaf in self.template if _is_weight(leaf))

    def double(self) -> Call:
        """The same call with its constants in float64; its module is unchanged."""
        template = tuple(
            leaf.detach()
            .to(torch.complex128 if leaf.is_complex() else torch.float64)
            .requires_grad_(leaf.requires_grad)
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
            else leaf
            for leaf in self.template
        )
        return replace(self, template=template)

    def run(self, tensors: Sequence[Tensor], target: Callable[..., Any] | None = None) -> tuple[Tensor, ...]:
        """Call the layer on ``tensors`` (one per input slot), with another implementation ``target`` if given.

        Raises:
            UnsupportedError: it returns another number of tensors than when it was traced, as one does that splits its
                input by values.
        """
        values = [tensors[leaf.index] if isinstance(leaf, Placeholder) else leaf for leaf in self.template]
        arguments, options = tree_unflatten(values, self.structure)
        results = tensors_of((target or self.target)(*arguments, **options))
        if len(results) != len(self.outputs):
            raise UnsupportedError(
                f"it returned {len(self.outputs)} tensors when it was traced and {len(results)} now: "
                "their number depends on values"
            )
        return results


@dataclass(frozen=True)
class Placeholder:
    """An input tensor in an argument list, by its index."""

    index: int


@dataclass(frozen=True)
class Trace:
    """A network in order of execution, with every tensor between its layers."""

    calls: tuple[Call, ...]
    slots: tuple[Slot, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    whole: str = ""
    """Why the network is recorded as one layer, if its layers cannot be."""

    @property
    def layers(self) -> tuple[ResolvedLayer, ...]:
        """The descriptions of the layers."""
        return tuple(call.resolved for call in self.calls)


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_leaf and leaf.requires_grad


def tensors_of(value: Any) -> tuple[Tensor, ...]:
    """The tensors in a value of nested containers and dataclasses, in order."""
    if isinstance(value, Tensor):
        return (value,)
    leaves = tree_flatten(value)[0]
    nested = (tensors_of(vars(leaf)) if is_dataclass(leaf) else (leaf,) for leaf in leaves)
    return tuple(leaf for group in nested for leaf in group if isinstance(leaf, Tensor))
