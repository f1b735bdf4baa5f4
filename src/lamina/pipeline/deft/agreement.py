"""How far the outputs of two networks agree, where no labels tell an accuracy."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lamina import run


@torch.no_grad()
def agreement(model: nn.Module, dense: nn.Module, batches: Iterable[run.Inputs], device: torch.device) -> float:
    """100 less the relative L2 error of a model's outputs in percent, against the dense network's on the same inputs.

    Of several outputs, the one with the largest error counts. The result is 0 where the error is 100 % or more or not
    finite, and where the outputs have other shapes, as those of a detector that finds other objects. Modules that draw
    random numbers draw the same in both networks.
    """
    squares: list[Tensor] = []
    for inputs in batches:
        ours, theirs = (_outputs(one, inputs, device) for one in (model, dense))
        if [one.shape for one in ours] != [one.shape for one in theirs]:
            return 0.0
        pairs = zip(ours, theirs, strict=True)
        new = [torch.stack([_square(mine - other), _square(other)]) for mine, other in pairs]
        squares = new if not squares else [sum_ + one for sum_, one in zip(squares, new, strict=True)]
    errors = [float((lost / whole).sqrt()) if lost else 0.0 for lost, whole in squares]
    return max(0.0, 100 * (1 - max(errors, default=0.0))) if all(error < 1 for error in errors) else 0.0


def _outputs(model: nn.Module, inputs: run.Inputs, device: torch.device) -> list[Tensor]:
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        outputs = run.forward(model, inputs)
    return [one for one in run.tensors(outputs) if one.is_floating_point() or one.is_complex()]


def _square(x: Tensor) -> Tensor:
    return x.abs().double().square().sum()
