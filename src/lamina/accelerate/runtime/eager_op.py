"""Operators in eager mode without PyTorch's dispatcher, whose overhead exceeds the GPU time of small kernels.

Tracing, transforms and dispatch modes still see the operators. Otherwise the same functions are called directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.operands import is_plain, transformed
from lamina.accelerate.runtime.launch_cache import recording
from lamina.accelerate.runtime.private_apis import supported
from lamina.accelerate.runtime.replay import ReplayedOperator, register_kernel


def can_skip_dispatch(*args: Any) -> bool:
    """Whether nothing observes operators on these arguments: no tracing, transform or mode, and plain tensors."""
    if torch.compiler.is_compiling() or not supported():
        return False
    if transformed() or (torch._C._len_torch_dispatch_stack() and not recording()):
        return False
    return all(is_plain(each) for each in args if isinstance(each, Tensor))


def without_dispatch(
    operator: Any, implementation: Callable[..., Any], setup_context: Callable[..., None], gradient: Callable[..., Any]
) -> Any:
    """The operator as a function that skips the dispatcher where nothing observes it.

    Args:
        operator: of ``torch.library``.
        implementation: what it computes, of the same arguments.
        setup_context, gradient: of its autograd formula, as ``register_autograd`` takes them.
    """

    name = "".join(word.capitalize() for word in operator._name.split("_"))
    replay = ReplayedOperator(f"{name}Backward", implementation, setup_context, gradient)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = implementation(*inputs)
            setup_context(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return gradient(ctx, *gradients)

    register_kernel(operator, implementation)
    overload = getattr(operator, "_opoverload", operator)  # fewer guards of a compiled model than its definition has

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return overload(*args)
        if (replayed := replay(args)) is not None:
            return replayed
        if not can_skip_dispatch(*args):
            return operator(*args)
        return Function.apply(*args) if torch.is_grad_enabled() else implementation(*args)  # type: ignore[no-untyped-call]

    return call


def call_in_backward(operator: Any, implementation: Callable[..., Any], *args: Any) -> Any:
    """Call an operator in a backward pass: by dispatch if it is differentiated again or observed, else directly."""
    return (operator if torch.is_grad_enabled() or not can_skip_dispatch(*args) else implementation)(*args)
