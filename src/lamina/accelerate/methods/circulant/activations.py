"""Activations that circulant layers compute: of their inputs, as they read them, and ReLU of their outputs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lamina.accelerate.common.activations import FUNCTIONS, activation_of
from lamina.errors import UsageError

Activation = Literal["relu"]
"""Of outputs."""

InputActivation = Literal["relu", "gelu", "gelu_tanh"]
"""Of inputs."""

ACTIVATIONS: tuple[InputActivation, ...] = ("relu", "gelu", "gelu_tanh")
"""In the order of their codes in kernels, from 1 on; `fused_rows` has them in `activations.cu`."""


def code(activation: InputActivation | None) -> int:
    """The code of an activation in operators and kernels; 0 for none."""
    return 0 if activation is None else 1 + ACTIVATIONS.index(activation)


def named(code: int) -> InputActivation | None:
    """The activation of a code."""
    return ACTIVATIONS[code - 1] if code else None


def activated(x: Tensor, activation: InputActivation | None) -> Tensor:
    """What follows an activation, by PyTorch."""
    return x if activation is None else FUNCTIONS[activation](x)


def gradient_through(dy: Tensor, x: Tensor, activation: InputActivation) -> Tensor:
    """The gradient with respect to ``x`` of `activated`, differentiable itself."""
    if activation == "relu":
        return dy.where(~(x <= 0), 0)
    dx: Tensor = torch.ops.aten.gelu_backward(dy, x, approximate="tanh" if activation == "gelu_tanh" else "none")
    return dx


def input_activation_of(module: nn.Module) -> InputActivation | None:
    """The activation that a module computes, of those that layers can."""
    return next((each for each in ACTIVATIONS if each == activation_of(module)), None)


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
