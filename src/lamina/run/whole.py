"""The whole training step of a network as one callable, to be compared with the sum of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lamina.run.loss import SeedGradient, has_gradient
from lamina.run.objective import tensors


def whole_step(
    network: nn.Module,
    inputs: Sequence[Tensor],
    seed: SeedGradient,
    backward: bool,
    input_gradients: Sequence[bool] = (),
) -> Callable[[], object]:
    """Forward, and with ``backward`` the gradients of all parameters and of the inputs in ``input_gradients``."""
    requested = [*input_gradients, *[False] * len(inputs)]
    leaves = [
        x.detach().requires_grad_(want and has_gradient(x.dtype)) for x, want in zip(inputs, requested, strict=False)
    ]
    wanted = [leaf for leaf in (*leaves, *network.parameters()) if leaf.requires_grad]
    if not backward or not wanted:
        return lambda: network(*leaves)
    gradients: list[Tensor] = []
    compute: Callable[..., Sequence[Tensor | None]] = torch.autograd.grad

    def step() -> object:
        nonlocal compute
        outputs = _differentiable(network(*leaves))
        if not gradients:
            gradients.extend(seed(outputs))
        if not any(output.requires_grad for output in outputs):
            return outputs
        pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
        try:
            return compute([output for output, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        except RuntimeError as error:
            if compute is _accumulated or "use_reentrant" not in str(error):
                raise
            compute = _accumulated
            return step()

    return step


def _accumulated(
    outputs: Sequence[Tensor], wanted: Sequence[Tensor], gradients: Sequence[Tensor], allow_unused: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by ``backward``: reentrant activation checkpoints do not support `torch.autograd.grad`."""
    before = [leaf.grad for leaf in wanted]
    try:
        for leaf in wanted:
            leaf.grad = None
        torch.autograd.backward(outputs, gradients)
        return tuple(leaf.grad for leaf in wanted)
    finally:
        for leaf, gradient in zip(wanted, before, strict=True):
            leaf.grad = gradient


def _differentiable(outputs: object) -> list[Tensor]:
    return [leaf for leaf in tensors(outputs) if has_gradient(leaf.dtype)]
