"""Activations that circulant layers compute: of their inputs, as they read them, and ReLU of their outputs."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.errors import UsageError

Activation = Literal["relu"]
"""Of outputs."""

InputActivation = Literal["relu", "gelu", "gelu_tanh"]
"""``gelu`` is exact, by the error function; ``gelu_tanh`` is the tanh approximation."""

ACTIVATIONS: tuple[InputActivation, ...] = ("relu", "gelu", "gelu_tanh")
"""In the order of their codes in kernels, from 1 on; `fused_rows` has them in `activations.cu`."""


def code(activation: InputActivation | None) -> int:
    """The code of an activation in operators and kernels; 0 for none."""
    return 0 if activation is None else 1 + ACTIVATIONS.index(activation)


def activated(x: Tensor, code: int) -> Tensor:
    """What follows the activation of a code, by PyTorch."""
    return F.relu(x) if code == 1 else F.gelu(x, approximate=_approximate(code)) if code else x


def gradient_through(dy: Tensor, x: Tensor, code: int) -> Tensor:
    """The gradient with respect to ``x`` of `activated`, differentiable itself."""
    if code == 1:
        return dy.where(~(x <= 0), 0)
    return torch.ops.aten.gelu_backward(dy, x, approximate=_approximate(code)) if code else dy


def _approximate(code: int) -> str:
    return "tanh" if ACTIVATIONS[code - 1] == "gelu_tanh" else "none"


def module_of(activation: InputActivation) -> nn.Module:
    """The module of an activation."""
    return nn.ReLU() if activation == "relu" else nn.GELU(_approximate(code(activation)))


def activation_of(module: nn.Module) -> InputActivation | None:
    """The activation that a module computes, of those that layers can; subclasses may compute something else."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return "relu" if type(module) is nn.ReLU else None


def check_activation(activation: str | None) -> Activation | None:
    """Check an activation of outputs.

    Raises:
        UsageError: it is unknown.
    """
    if activation not in (None, "relu"):
        raise UsageError(f"activation: expected 'relu' or None, got {activation!r}")
    return "relu" if activation else None


def check_input_activation(activation: str | None) -> InputActivation | None:
    """Check an activation of inputs.

    Raises:
        UsageError: it is unknown.
    """
    known = next((each for each in ACTIVATIONS if each == activation), None)
    if known != activation:
        raise UsageError(f"input_activation: expected one of {', '.join(ACTIVATIONS)}, or None, got {activation!r}")
    return known
