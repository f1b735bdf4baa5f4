"""What to compare with: weights pruned by magnitude at once or in steps, output channels, and the dense network."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from lamina import run
from lamina.accelerate.convert import standard_twin
from lamina.build.flops import FlopCounter
from lamina.errors import MissingError, UnsupportedError, UsageError

MAGNITUDE, ITERATIVE, CHANNELS, DENSE = "magnitude", "iterative-magnitude", "channels", "dense"
LABELS = {DENSE: "dense-tuned"}
"""Names of results, where they differ: the dense network itself has its name already."""
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
MULTIPLE = 8
"""Channels that are left are a multiple of this, as tensor cores need, if the smallest layer has two of it or more."""
BISECTION_STEPS = 10
"""Steps of the search for the pruning ratio that leaves a given number of multiplications."""


def require(names: Sequence[str]) -> None:
    """Check that the packages for these methods are installed.

    Raises:
        MissingError: the package for it is not installed.
    """
    if CHANNELS in names and CHANNELS not in installed(CHANNELS):
        raise MissingError("comparing with pruned channels needs torch-pruning: pip install torch-pruning")


def installed(*names: str) -> tuple[str, ...]:
    """Of the names, those whose package is installed: that for channels is in the extra ``rivals``."""
    return tuple(name for name in names if name != CHANNELS or find_spec("torch_pruning") is not None)


def pruned(name: str, dense: nn.Module, example: run.Inputs, ours: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """A copy pruned to the size of another network, and a function to call after fine-tuning.

    Args:
        name: ``magnitude`` or ``iterative-magnitude``, where each layer keeps as many weights as ours, ``channels``,
            where the network keeps as many multiplications, or ``dense``, where all is kept.
        dense: on the device of ``example``; not changed.
        example: an input, or a tuple of them.
        ours: the network converted from ``dense``, on the same device, in the same dtype.

    Raises:
        MissingError: a package is not installed.
        UnsupportedError: Torch-Pruning fails on this network, or what it leaves does not run.
        UsageError: nothing in the network can be pruned.
    """
    require([name])
    if not any(isinstance(module, WEIGHTED) for module in dense.modules()):
        raise UsageError(f"{name}: expected a network with linear layers or convolutions, got none")
    if name == DENSE:
        return copy.deepcopy(dense), lambda: None
    if name in (MAGNITUDE, ITERATIVE):
        model = copy.deepcopy(dense)
        _mask_smallest(model, ours, 1.0)
        return model, lambda: _make_permanent(model)
    return _channels(dense, example, multiplications(ours, example)), lambda: None


def tuned(
    name: str,
    dense: nn.Module,
    example: run.Inputs,
    ours: nn.Module,
    tune: Callable[[nn.Module, int], object],
    epochs: int,
) -> nn.Module:
    """A copy pruned to the size of another network, and fine-tuned for as many epochs in all.

    ``iterative-magnitude`` prunes an equal part of the weights before each epoch, so that the remaining ones adapt in
    between: Han et al., Learning both Weights and Connections for Efficient Neural Networks, NIPS 2015. The others
    prune at once.

    Args:
        name, dense, example, ours: as `pruned` takes them.
        tune: trains a model for some epochs.
        epochs: of fine-tuning; without any, all is pruned at once.

    Raises:
        MissingError, UnsupportedError, UsageError: as `pruned`.
    """
    if name != ITERATIVE or not epochs:
        model, finish = pruned(name, dense, example, ours)
        tune(model, epochs)
        finish()
        return model
    model = copy.deepcopy(dense)
    for epoch in range(epochs):
        _mask_smallest(model, ours, (epoch + 1) / epochs)
        tune(model, 1)
    _make_permanent(model)
    return model


@torch.no_grad()
def multiplications(model: nn.Module, example: run.Inputs) -> int:
    """Multiplications of one forward pass, in linear layers and convolutions."""
    model = standard_twin(model)  # PyTorch counts nothing on its fast paths through attention
    with FlopCounter() as counter:
        run.forward(model, example)
    return int(counter.flops) // 2


def _weighted(model: nn.Module) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, WEIGHTED)]


def _mask_smallest(model: nn.Module, ours: nn.Module, part: float) -> None:
    """Mask the smallest weights of each layer, also during training, until a part of those to be pruned is. The kernels
    remain dense."""
    for name, module in _weighted(model):
        weight: Any = ours.get_submodule(name).weight
        wanted = round(part * (module.weight.numel() - weight.numel()))
        masked = int((module.weight_mask == 0).sum()) if hasattr(module, "weight_mask") else 0
        if wanted > masked:  # layers that stay may compute their weight, which cannot be masked
            prune.l1_unstructured(module, "weight", amount=wanted - masked)


def _make_permanent(model: nn.Module) -> None:
    for _, module in _weighted(model):
        if hasattr(module, "weight_mask"):
            prune.remove(module, "weight")


def _channels(dense: nn.Module, example: run.Inputs, left: int) -> nn.Module:
    """Remove the output channels of the smallest L1 norm from all layers but the last, with the weights that read them.

    Li et al., Pruning Filters for Efficient ConvNets, ICLR 2017. The same fraction of each layer, by Torch-Pruning,
    which follows channels through the network (Fang et al., DepGraph, CVPR 2023).
    """
    low, high, best = 0.0, 1.0, copy.deepcopy(dense)
    for _ in range(BISECTION_STEPS):
        ratio = (low + high) / 2
        try:
            tried = _narrowed(copy.deepcopy(dense), example, ratio)
            remaining = multiplications(tried, example)
        except Exception as error:  # of a forward pass with sizes of its own, or of the library
            reason = f"Torch-Pruning cannot prune the channels of this network: {run.one_line(error)}"
            raise UnsupportedError(reason) from error
        if remaining >= left:
            low, best = ratio, tried
        else:
            high = ratio
    return best


def _narrowed(model: nn.Module, example: run.Inputs, ratio: float) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch_pruning, which was written for another PyTorch
        library: Any = importlib.import_module("torch_pruning")
        *others, last = (module for module in model.modules() if isinstance(module, WEIGHTED))
        fewest = min((module.weight.shape[0] for module in others), default=0)
        library.pruner.MagnitudePruner(
            model,
            example,
            importance=library.importance.MagnitudeImportance(p=1, group_reduction="first"),  # of the layer itself
            pruning_ratio=ratio,
            round_to=MULTIPLE if fewest >= 2 * MULTIPLE else None,
            ignored_layers=[last],
        ).step()
    for parameter in model.parameters():
        parameter.grad = None
    return model
