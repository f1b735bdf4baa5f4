"""Pruning of dead output channels across layers, so that inputs need no gather at run time.

Channels that no consumer reads are dead: they are pruned from the producer, and the others are permuted into the order
in which they are read. Activations, poolings and norms between the two act on each channel separately, so they commute
with both. A consumer then reads all of its input, or a slice. The network computes the same as before.

The paper moves the inputs of each consumer at run time; here the producer's weights are permuted once.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import is_parametrized

from lamina.accelerate.common.batchnorm import HOOKS
from lamina.accelerate.common.traced import Calls, trace
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.methods.elimination.nn import EliminatedConv1d, EliminatedConv2d, EliminatedLinear
from lamina.accelerate.methods.elimination.reference import dense_weight
from lamina.errors import UnsupportedError, UsageError

ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Hardswish),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)
POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
FUNCTIONS = (F.relu, torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.leaky_relu, F.dropout)
POOL_FUNCTIONS = (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)
METHODS = ("relu", "tanh", "sigmoid", "contiguous")
"""Operations that act on each channel separately, as modules, functions and methods."""

PRODUCERS = (nn.Linear, nn.Conv1d, nn.Conv2d, EliminatedLinear, EliminatedConv1d, EliminatedConv2d)
CONSUMERS = (EliminatedLinear, EliminatedConv1d, EliminatedConv2d)


@dataclass(frozen=True)
class Folded:
    """A changed producer: ``outputs`` before, ``live`` ones that remain, and the layers that read them."""

    producer: str
    outputs: int
    live: int
    consumers: tuple[str, ...]
    plain: tuple[str, ...]
    """Consumers that are dense layers now, since they read all remaining channels in order."""


@dataclass(frozen=True)
class _Read:
    """One consumer of a tensor: entries of its index per channel, and the norms in between."""

    name: str
    entries: int
    norms: tuple[str, ...]


def fold(model: nn.Module) -> tuple[nn.Module, tuple[Folded, ...]]:
    """Prune dead output channels and permute the others into the order in which they are read, in place.

    The same layers must read a producer in training and evaluation mode, and where an optional argument has a value, as
    far as `torch.fx` can trace that. Other producers stay.

    Args:
        model: with layers of this package; others are unchanged. `torch.fx` must be able to trace it.

    Returns:
        The model, and the changed producers. It computes the same, up to the order of sums.

    Raises:
        UsageError: the model cannot be traced.
    """
    try:
        traced = trace(model)
    except UnsupportedError as error:
        raise UsageError(f"{error}; fold its sequential parts one by one") from error
    graph, modules, once = traced.graph, traced.modules, traced.once
    folded = []
    for node in graph.nodes:
        if node.op != "call_module" or not _is_producer(modules[str(node.target)]):
            continue
        reads = _reads(node, modules)
        touched = {str(node.target), *(name for read in reads for name in (read.name, *read.norms))}
        if not reads or not touched <= once or not _alone(model, [modules[name] for name in touched]):
            continue
        if all(_alike(calls, str(node.target), touched, reads, modules) for calls in traced.others):
            folded.append(_fold_one(model, modules, str(node.target), reads))
    return model, tuple(one for one in folded if one is not None)


def _alike(calls: Calls, producer: str, touched: set[str], reads: list[_Read], modules: dict[str, nn.Module]) -> bool:
    """Whether the same layers read a producer's output in other calls; or none of them is called."""
    if producer not in calls:
        return touched.isdisjoint(calls)
    return _reads(calls[producer][0], modules) == reads


def _is_producer(module: nn.Module) -> bool:
    """Whether each output channel reads the same inputs, so that any of them can go.

    A subclass may have more per channel than a weight and a bias, such as a gain that scales the weight.
    """
    return type(module) in PRODUCERS and getattr(module, "groups", 1) == 1


def _reads(producer: fx.Node, modules: dict[str, nn.Module]) -> list[_Read]:
    """The layers with pruned inputs that read a producer's output; none if anything else reads it."""
    layer: Any = modules[str(producer.target)]
    outputs, image = len(layer.weight), not isinstance(layer, nn.Linear | EliminatedLinear)
    found: list[_Read] = []
    front: list[tuple[fx.Node, tuple[str, ...], bool]] = [(producer, (), False)]
    while front:
        node, norms, flat = front.pop()
        if not node.users:
            return []
        for user in node.users:
            match _step(user, node, modules):
                case "pass":
                    front.append((user, norms, flat))
                case "pool" if image and not flat:
                    front.append((user, norms, flat))
                case "norm" if not flat:
                    front.append((user, (*norms, str(user.target)), flat))
                case "flatten" if not flat:
                    front.append((user, norms, image))
                case "consume":
                    entries = _entries(modules[str(user.target)], outputs, image, flat)
                    if not entries:
                        return []
                    found.append(_Read(str(user.target), entries, norms))
                case _:
                    return []
    return sorted(found, key=lambda read: list(modules).index(read.name))


def _entries(reader: Any, outputs: int, image: bool, flat: bool) -> int:
    """Entries of a consumer's index per channel: its taps, or the pixels of a flattened image; 0 if it does not fit."""
    linear = isinstance(reader, EliminatedLinear)
    inputs = reader.in_features if linear else reader.in_channels
    if flat:
        return inputs // outputs if linear and inputs % outputs == 0 else 0
    if inputs != outputs or linear == image:
        return 0
    return _taps(reader)


def _taps(reader: Any) -> int:
    return torch.Size(reader.kernel_size).numel() if getattr(reader, "by", "channel") == "tap" else 1


def _step(user: fx.Node, source: fx.Node, modules: dict[str, nn.Module]) -> str | None:
    """How a node acts on a tensor's channels; None if it mixes them."""
    if user.op == "call_module" and user.args == (source,) and not user.kwargs:
        module = modules[str(user.target)]
        if isinstance(module, CONSUMERS):
            return "consume"
        if isinstance(module, nn.Flatten):
            return "flatten" if (module.start_dim, module.end_dim) == (1, -1) else None
        if isinstance(module, _BatchNorm):
            return "norm" if type(module) in NORMS else None
        if type(module) in POOLS:
            return None if getattr(module, "return_indices", False) else "pool"
        return "pass" if type(module) in ELEMENTWISE else None
    alone = [argument for argument in user.all_input_nodes if argument is not source] == []
    if user.op == "call_function" and alone and user.args[:1] == (source,):
        if user.target is torch.flatten:
            return "flatten" if _flattens(user) else None
        if user.target in POOL_FUNCTIONS:
            return "pool"
        return "pass" if user.target in FUNCTIONS else None
    if user.op == "call_method" and alone and user.args[:1] == (source,):
        if user.target == "flatten":
            return "flatten" if _flattens(user) else None
        return "pass" if user.target in METHODS else None
    return None


def _flattens(node: fx.Node) -> bool:
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
    return (operator.index(start), operator.index(end)) == (1, -1)  # type: ignore[arg-type]


def _alone(model: nn.Module, touched: list[nn.Module]) -> bool:
    """Whether no other module shares the parameters to be changed, and no hook or parametrization would be lost."""
    if any(is_parametrized(module) or any(getattr(module, hooks) for hooks in HOOKS) for module in touched):
        return False
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    return all(len(owners[id(parameter)]) == 1 for module in touched for parameter in module.parameters())


def _fold_one(
    model: nn.Module, modules: dict[str, nn.Module], producer: str, reads: list[_Read]
) -> Folded | None:  # fmt: skip
    layer: Any = modules[producer]
    outputs = len(layer.weight)
    order = _order([_channels(modules[read.name], read.entries) for read in reads], outputs)
    if order == list(range(outputs)):
        return None
    device = layer.weight.device
    chosen = torch.tensor(order, device=device)
    _narrow_outputs(layer, chosen)
    for name in dict.fromkeys(name for read in reads for name in read.norms):
        _narrow_norm(modules[name], chosen)
    plain = []
    for read in reads:
        reader: Any = modules[read.name]
        new = _moved(reader.index, chosen, read.entries, outputs)
        fresh = _renumbered(reader, new, len(order) * read.entries)
        if not isinstance(fresh, Indexed):
            plain.append(read.name)
        parent, _, last = read.name.rpartition(".")
        setattr(model.get_submodule(parent), last, fresh)
        modules[read.name] = fresh
    return Folded(producer, outputs, len(order), tuple(read.name for read in reads), tuple(plain))


def _channels(reader: Any, entries: int) -> list[int]:
    """Channels that a layer reads: in its order, or those with the most entries first."""
    channels = (reader.index // entries).tolist()
    if entries == 1:
        return list(channels)
    count = Counter(channels)
    return sorted(count, key=lambda channel: (-count[channel], channel))


def _order(reads: list[list[int]], outputs: int) -> list[int]:
    """Live channels, those that the most consumers read first, so that they are a common prefix."""
    rank = {channel: position for read in reversed(reads) for position, channel in enumerate(read)}
    readers = {channel: tuple(channel not in read for read in reads) for channel in rank}
    return sorted(rank, key=lambda channel: (sum(readers[channel]), readers[channel], rank[channel]))


def _moved(index: Tensor, chosen: Tensor, entries: int, outputs: int) -> Tensor:
    position = torch.full((outputs,), -1, dtype=torch.int64, device=index.device)
    position[chosen] = torch.arange(len(chosen), device=index.device)
    return position[index // entries] * entries + index % entries


@torch.no_grad()
def _narrow_outputs(layer: Any, chosen: Tensor) -> None:
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        if parameter is not None:
            setattr(layer, name, _like(parameter, parameter[chosen]))
    setattr(layer, "out_channels" if hasattr(layer, "out_channels") else "out_features", len(chosen))


@torch.no_grad()
def _narrow_norm(norm: Any, chosen: Tensor) -> None:
    for name in ("weight", "bias"):
        if getattr(norm, name) is not None:
            setattr(norm, name, _like(getattr(norm, name), getattr(norm, name)[chosen]))
    for name in ("running_mean", "running_var"):
        if getattr(norm, name) is not None:
            setattr(norm, name, getattr(norm, name)[chosen].clone())
    norm.num_features = len(chosen)


def _like(parameter: nn.Parameter, value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.clone(), requires_grad=parameter.requires_grad)


@torch.no_grad()
def _renumbered(reader: Any, index: Tensor, entries: int) -> nn.Module:
    """The same layer for the pruned input with ``entries`` entries; a dense one if it reads all of them."""
    taps = _taps(reader)
    inputs = entries // taps
    order = torch.argsort(index % taps * inputs + index // taps)
    weight, index = reader.weight[:, order], index[order]
    if isinstance(reader, EliminatedLinear):
        dense: Any = nn.Linear(inputs, reader.out_features, bias=reader.bias is not None, device="meta")
    else:
        dense = reader.dense(
            inputs, reader.out_channels, reader.kernel_size, reader.stride, reader.padding, reader.dilation,
            1, reader.bias is not None, reader.padding_mode, device="meta",
        )  # fmt: skip
    kernel = getattr(reader, "kernel_size", ())
    dense.weight = _like(reader.weight, dense_weight(weight, index, inputs, kernel))
    if reader.bias is not None:
        dense.bias = _like(reader.bias, reader.bias)
    dense.train(reader.training)
    if len(index) == entries:
        return cast(nn.Module, dense)
    options = {} if isinstance(reader, EliminatedLinear) else {"by": reader.by}
    layer: nn.Module = type(reader).from_dense(dense, index, impl=reader.impl, **options)
    return layer
