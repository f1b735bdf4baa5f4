"""The inputs of a network: one tensor, or a tuple of them where it takes several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Inputs = Tensor | tuple[Tensor, ...]


def forward(network: nn.Module, inputs: Inputs) -> Any:
    """The outputs of a network; a tuple is its positional arguments."""
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)


def size_lazy_parameters(network: nn.Module, inputs: Inputs) -> None:
    """Run a network once if it has lazy parameters, which get their sizes from their first inputs."""
    if any(is_lazy(one) for one in network.parameters()):
        training = network.training
        with torch.no_grad():
            forward(network.eval(), inputs)
        network.train(training)


def moved(inputs: Inputs, device: torch.device, dtype: torch.dtype | None = None) -> Inputs:
    """The inputs on a device; those of floating point in ``dtype``, if given."""
    if isinstance(inputs, tuple):
        return tuple(_moved(one, device, dtype) for one in inputs)
    return _moved(inputs, device, dtype)


def _moved(x: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return x.to(device, dtype) if dtype and x.is_floating_point() else x.to(device)
