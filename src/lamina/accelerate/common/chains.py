"""Chains of modules in a traced network: each computes the input of the next, and nothing else reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx, nn

from lamina.accelerate.common.traced import Traced

RELUS = (F.relu, torch.relu, torch.relu_, F.relu_)
RELU_METHODS = ("relu", "relu_")


@dataclass(frozen=True)
class Link:
    """A module of a chain, and its path; without a path it cannot be replaced, since it is called elsewhere too.

    A ReLU that is no module, or is called several times, has no path: what computes it together with what is before it
    stays right, since ReLU of ReLU, also of max pooling of ReLU, is the same again.
    """

    module: nn.Module
    path: str | None = None


Chain = Sequence[Link]


def chains(traced: Traced) -> Iterator[list[Link]]:
    """Every chain of a network, from the first module on that no other chain has."""
    seen: set[fx.Node] = set()
    for first in traced.graph.nodes:
        node, chain = first, list[Link]()
        while node not in seen and (link := _link(traced, node)) is not None:
            seen.add(node)
            chain.append(link)
            if (reader := traced.reader(node)) is None:
                break
            node = reader
        if len(chain) > 1:
            yield chain


def _link(traced: Traced, node: fx.Node) -> Link | None:
    module = traced.module(node)
    path = str(node.target)
    if isinstance(module, nn.Identity):
        return Link(module)
    if module is not None and path in traced.once:
        return Link(module, path)
    if type(module) is nn.ReLU:
        return Link(nn.ReLU(module.inplace))
    return Link(nn.ReLU(_is_in_place(node))) if _is_relu(node) else None


def _is_in_place(node: fx.Node) -> bool:
    """Whether a ReLU as a function or a method writes over its input."""
    return str(getattr(node.target, "__name__", node.target)).endswith("_") or bool(node.kwargs.get("inplace"))


def _is_relu(node: fx.Node) -> bool:
    """Whether a node is the ReLU of one value, as a function or a method."""
    named = node.target in (RELU_METHODS if node.op == "call_method" else RELUS)
    called = named and node.op in ("call_function", "call_method")
    return called and len(node.args) == 1 and isinstance(node.args[0], fx.Node) and node.kwargs.keys() <= {"inplace"}
