"""The initial gradient of the backward pass, with respect to a network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

SeedGradient = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def seed_gradient(labels: Tensor | None, seed: int = 0) -> SeedGradient:
    """The gradient of the mean cross-entropy for outputs that are class scores of ``labels``.

    Other outputs (a feature map, a probability) get normally distributed random gradients, drawn from ``seed``.

    Args:
        labels: class of each sample ``(N,)``, or of each position ``(N, T)``; ``None`` without labels.
        seed: seed of the random gradients.
    """

    def gradients(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [
            _cross_entropy(output, labels)
            if labels is not None and _scores(output, labels)
            else torch.randn(
                output.shape, generator=generator, dtype=torch.complex64 if output.is_complex() else torch.float32
            ).to(output)
            for output in outputs
        ]

    return gradients


def has_gradient(dtype: torch.dtype) -> bool:
    """Whether tensors of this type have gradients: real and complex values have, integers have not."""
    return dtype.is_floating_point or dtype.is_complex


def _scores(output: Tensor, labels: Tensor) -> bool:
    return not output.is_complex() and output.shape[:-1] == labels.shape and output.shape[-1] > int(labels.max())


def _cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    leaf = output.detach().requires_grad_()
    loss = F.cross_entropy(leaf.flatten(0, -2).float(), labels.flatten().to(leaf.device))
    return torch.autograd.grad(loss, leaf)[0]
