"""One update of the weights: forward pass, loss, backward pass and optimizer, in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lamina.run.inputs import Inputs, forward
from lamina.run.objective import Objective
from lamina.spec.training import Training

Update = Callable[[Inputs, Tensor], tuple[Tensor, Tensor]]
"""Takes inputs and labels on the device, and changes the weights. Returns the mean loss and the number of hits."""

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of mixed precision."""


@dataclass(frozen=True)
class Trained:
    """What an update works with.

    Attributes:
        model: computes the outputs; it may wrap the network, as DistributedDataParallel does.
        network: has the parameters.
        optimizer: of the parameters; the training loop sets its learning rates.
        scaler: of the loss; enabled for fp16 only.
        objective: the loss, and the number of right predictions.
        settings: of the training.
        device: of the parameters.
    """

    model: nn.Module
    network: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    objective: Objective
    settings: Training
    device: torch.device


Updates = Callable[[Trained], Update]
"""Makes the update of a training, such as `eager_update`."""


def eager_update(trained: Trained) -> Update:
    """The update in eager mode; ``trained.model`` may be a compiled one."""
    model, optimizer, scaler = trained.model, trained.optimizer, trained.scaler
    settings = trained.settings

    def update(x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(settings, trained.device):
            loss, hits = trained.objective(forward(model, x), y, settings.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        _densify(optimizer)
        if settings.clip_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(trained.network.parameters(), settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), hits

    return update


def autocast(settings: Training, device: torch.device) -> AbstractContextManager[object]:
    """The context of forward passes."""
    dtype = AUTOCAST.get(settings.precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def _densify(optimizer: torch.optim.Optimizer) -> None:
    """Make sparse gradients dense, as those of ``nn.Embedding(sparse=True)``: momentum and weight decay need that."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
