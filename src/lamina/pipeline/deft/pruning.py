"""Two other pruning methods to compare with: unstructured by magnitude, and structured by output channels."""

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
from lamina.build.flops import FlopCounter
from lamina.errors import MissingError, UsageError

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
BISECTION_STEPS = 10
"""Steps of the search for the pruning ratio that leaves a given number of multiplications."""


def require(names: Sequence[str]) -> None:
    """Check that the packages for these methods are installed.

    Raises:
        MissingError: the package for it is not installed.
    """
    if "channels" in names and find_spec("torch_pruning") is None:
        raise MissingError("comparing with pruned channels needs torch_pruning: pip install --no-deps torch-pruning")


def pruned(name: str, dense: nn.Module, example: run.Inputs, ours: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """A copy pruned to the size of another network, and a function to call after fine-tuning.

    Args:
        name: ``magnitude``, where each layer keeps as many weights as ours, or ``channels``, where the network keeps
            as many multiplications.
        dense: on the device of ``example``; not changed.
        example: an input, or a tuple of them.
        ours: the network converted from ``dense``, on the same device, in the same dtype.

    Raises:
        MissingError: a package is not installed.
        UsageError: nothing in the network can be pruned.
    """
    require([name])
    if not any(isinstance(module, WEIGHTED) for module in dense.modules()):
        raise UsageError(f"{name}: expected a network with linear layers or convolutions, got none")
    if name == "magnitude":
        return _magnitude(copy.deepcopy(dense), ours)
    return _channels(dense, example, multiplications(ours, example)), lambda: None


@torch.no_grad()
def multiplications(model: nn.Module, example: run.Inputs) -> int:
    """Multiplications of one forward pass, in linear layers and convolutions."""
    with FlopCounter() as counter:
        run.forward(model, example)
    return int(counter.flops) // 2


def _magnitude(model: nn.Module, ours: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """Mask the smallest weights of each layer, also during training. The kernels remain dense."""
    pruned = []
    for name, module in model.named_modules():
        if isinstance(module, WEIGHTED):
            weight: Any = ours.get_submodule(name).weight
            prune.l1_unstructured(module, "weight", amount=module.weight.numel() - weight.numel())
            pruned.append(module)

    def finish() -> None:
        for module in pruned:
            prune.remove(module, "weight")

    return model, finish


def _channels(dense: nn.Module, example: run.Inputs, left: int) -> nn.Module:
    """Remove the smallest output channels from all layers but the last, with the weights that read them."""
    low, high, best = 0.0, 1.0, copy.deepcopy(dense)
    for _ in range(BISECTION_STEPS):
        ratio = (low + high) / 2
        tried = _narrowed(copy.deepcopy(dense), example, ratio)
        if multiplications(tried, example) >= left:
            low, best = ratio, tried
        else:
            high = ratio
    return best


def _narrowed(model: nn.Module, example: run.Inputs, ratio: float) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch_pruning, which was written for another PyTorch
        library: Any = importlib.import_module("torch_pruning")
        last = [module for module in model.modules() if isinstance(module, WEIGHTED)][-1]
        library.pruner.MagnitudePruner(
            model,
            example,
            importance=library.importance.MagnitudeImportance(p=2),
            pruning_ratio=ratio,
            ignored_layers=[last],
        ).step()
    for parameter in model.parameters():
        parameter.grad = None
    return model
