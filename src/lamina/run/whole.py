"""The whole training step of a network as one callable, to be compared with the sum of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lamina.run.loss import SeedGradient


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
        x.detach().requires_grad_(want and x.is_floating_point()) for x, want in zip(inputs, requested, strict=False)
    ]
    wanted = [leaf for leaf in (*leaves, *network.parameters()) if leaf.requires_grad]
    if not backward or not wanted:
        return lambda: network(*leaves)
    gradients: list[Tensor] = []

    def step() -> object:
        outputs = _real(network(*leaves))
        if not gradients:
            gradients.extend(seed(outputs))
        return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

    return step


def _real(outputs: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
