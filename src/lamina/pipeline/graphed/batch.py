"""A batch as a graph sees it: a signature that must match, and the tensors that a replay reads."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lamina.errors import UnsupportedError, UsageError


@dataclass(frozen=True)
class Batch:
    """The arguments of one call, flattened; leaves that are no tensors belong to the signature."""

    leaves: tuple[Any, ...]
    spec: TreeSpec

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def signature(self) -> Hashable:
        """What must be equal for a graph to be replayed on this batch.

        Raises:
            UnsupportedError: an argument is neither a tensor nor hashable.
        """
        described = tuple(
            (leaf.shape, leaf.dtype, leaf.stride(), leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in self.leaves
        )
        try:
            hash(described)
        except TypeError as error:
            raise UnsupportedError(
                f"CUDA graphs need arguments that are tensors or hashable values: {error}; pass tensors"
            ) from error
        return self.spec, described

    def static(self, device: torch.device) -> Batch:
        """A copy whose tensors stay at their addresses on the device."""

        def copied(tensor: Tensor) -> Tensor:
            with torch.inference_mode(False), torch.no_grad():
                copy = torch.empty_like(tensor, device=device).copy_(tensor)
            return copy.requires_grad_(tensor.requires_grad)

        leaves = [copied(leaf) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return Batch(tuple(leaves), self.spec)

    @torch.no_grad()
    def fill(self, other: Batch) -> None:
        """Copy the values of another batch of the same signature into this one's tensors."""
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            if mine.data_ptr() != theirs.data_ptr():
                mine.copy_(theirs)

    def arguments(self) -> Any:
        """The arguments as they were passed."""
        return tree_unflatten(self.leaves, self.spec)


def batch_of(*arguments: Any) -> Batch:
    """The batch of a call."""
    leaves, spec = tree_flatten(arguments)
    return Batch(tuple(leaves), spec)


class ModelState:
    """What a captured graph takes for granted about a model: the modes of its modules, and where its tensors are."""

    def __init__(self, model: nn.Module):
        self.modules = [*model.modules()]
        self.tensors = [*model.parameters(), *model.buffers()]

    def now(self) -> Hashable:
        """Equal as long as graphs that were captured before may be replayed."""
        return (
            tuple([module.training for module in self.modules]),
            tuple([tensor.data_ptr() for tensor in self.tensors]),
            tuple([tensor.requires_grad for tensor in self.tensors]),
        )


def device_of(model: nn.Module) -> torch.device:
    """The CUDA device of all of a model's tensors.

    Raises:
        UnsupportedError: they are not on one CUDA device.
        UsageError: the model is no module.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        found = ", ".join(sorted(map(str, devices))) or "no tensors"
        raise UnsupportedError(
            f"CUDA graphs need all parameters and buffers on one CUDA device, found {found}; call model.to('cuda')"
        )
    return next(iter(devices))
