"""The operands of a layer: checks, and the dtype of the computation."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from lamina.errors import UnsupportedError, UsageError

HAS_TRITON = find_spec("triton") is not None
"""Whether Triton is installed."""


_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(x: object) -> bool:
    """Whether it is a plain tensor with storage: no subclass, not sparse, not batched by a transform."""
    return type(x) in _PLAIN and torch._C._has_storage(x)  # type: ignore[arg-type]


def has_kernels(x: Tensor) -> bool:
    """Whether kernels can compute with ``x``: it is on a GPU, and no transform of ``torch.func`` is active."""
    return HAS_TRITON and not transformed() and x.is_cuda


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is active, which has no rules for kernels."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def observable(x: Tensor) -> bool:
    """Whether a hook may keep ``x``: it is neither nested nor sparse, and no transform of ``torch.func`` is active."""
    return not x.is_nested and x.layout == torch.strided and not transformed()


def autocasting(x: Tensor) -> bool:
    """Whether autocast determines the dtype of computations with ``x``."""
    return x.device.type != "meta" and x.dtype != torch.float64 and torch.is_autocast_enabled(x.device.type)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of ``x``, or autocast's."""
    return torch.get_autocast_dtype(x.device.type) if autocasting(x) else x.dtype


def cast(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The bias, if any, in another dtype."""
    return None if bias is None else bias.to(dtype)


def sizes(tensor: Tensor) -> str:
    """A shape as text for messages."""
    return str(tuple(tensor.shape))


def check_operands(x: Tensor, weight: Tensor | None, bias: Tensor | None, outputs: int | None = None) -> None:
    """Refuse operands that do not fit each other.

    Args:
        x: the input.
        weight, bias: of the layer, or None.
        outputs: length of the bias; by default the first size of the weight.

    Raises:
        UsageError: naming the operand, what was expected and what was got.
    """
    check_floating(x)
    wanted = outputs if outputs is not None or weight is None else weight.shape[0]
    if bias is not None and wanted is not None and bias.shape != (wanted,):
        raise UsageError(f"bias: expected ({wanted},), got {sizes(bias)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_alike(name, tensor, x, "x")


def check_floating(x: Tensor) -> None:
    """Refuse an input that is not floating point, and a nested one.

    Raises:
        UsageError: naming its dtype.
        UnsupportedError: it is nested.
    """
    if x.is_nested:
        raise UnsupportedError("x: expected a tensor with one shape, got a nested one: leave this layer dense")
    if not x.is_floating_point():
        raise UsageError(f"x: expected a floating point dtype, got {x.dtype}")


def check_alike(name: str, tensor: Tensor, x: Tensor, other: str) -> None:
    """Refuse a tensor on another device than ``x``, or with another dtype if autocast is off.

    Raises:
        UsageError: naming the tensor, and ``x`` as ``other``.
    """
    if tensor.device != x.device:
        raise UsageError(f"{name}: expected it on {x.device} with {other}, got {tensor.device}")
    if tensor.dtype != x.dtype and not autocasting(x):
        raise UsageError(
            f"{name}: expected {x.dtype} like {other}, got {tensor.dtype}; convert one, or use torch.autocast"
        )


def owned(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``y`` in another shape, which autograd does not treat as a view: in-place changes of views copy gradients twice.

    ``y`` must not be used elsewhere.
    """
    whole: Tensor = torch.ops.aten._unsafe_view(y, shape)
    return whole
