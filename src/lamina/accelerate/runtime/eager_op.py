"""Operators without PyTorch's dispatch of them, which takes the host longer than small kernels take a GPU.

Only who traces, transforms or counts sees operators; for everyone else the same functions are called straight away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.accelerate.common.operands import is_plain, transformed


def unobserved(*args: Any) -> bool:
    """Whether nobody would see operators on these: no tracing, transform or mode, and plain tensors."""
    if torch.compiler.is_compiling() or transformed() or torch._C._len_torch_dispatch_stack():
        return False
    return all(is_plain(each) for each in args if isinstance(each, Tensor))


def direct(operator: Any, run: Callable[..., Any], keep: Callable[..., None], gradient: Callable[..., Any]) -> Any:
    """The operator, called without dispatch where nobody would see it.

    Args:
        operator: as ``torch.library`` has made it.
        run: what it does, of the same arguments.
        keep: its ``setup_context``.
        gradient: its derivative.
    """

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = run(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> Any:
            return gradient(ctx, *gradients)

    def call(*args: Any) -> Any:
        if not unobserved(*args):
            return operator(*args)
        return Direct.apply(*args) if torch.is_grad_enabled() else run(*args)  # type: ignore[no-untyped-call]

    return call


def in_backward(operator: Any, run: Callable[..., Any], *args: Any) -> Any:
    """What a derivative calls: the operator where it is differentiated again, or seen; else ``run``, what it does."""
    return (operator if torch.is_grad_enabled() or not unobserved(*args) else run)(*args)
