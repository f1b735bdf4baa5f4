"""The definition of on-chip fission: products of the values that a kernel reads from shared memory."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.operands import transformed
from lamina.accelerate.methods.weight_only.formats import pack, unpack
from lamina.accelerate.papers.on_chip_fission.config import OnChip

UPPER = -(1 << 16)
"""A mask of the upper 16 bits."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor | None, format: OnChip) -> Tensor:
    """``x (..., inputs)`` to ``(..., outputs)``; ``weight (outputs, kept)`` multiplies the inputs of ``index``."""
    x = x if index is None else x[..., index]
    return F.linear(read(x, format), read(weight, format), bias)


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor | None, format: OnChip, *steps: tuple[int, int]
) -> Tensor:
    """``x (N, C, H, W)`` to ``(N, outputs, H', W')`` with ``steps``: stride, padding and dilation.

    Values that share a word are neighbours in the order of channels, rows and columns of a window.
    """
    x = x if index is None else x[:, index]
    stride, padding, dilation = steps
    if format == "float":
        return F.conv2d(x, weight, bias, stride, padding, dilation)
    kernel = weight.shape[2:]
    columns = read(F.unfold(x, kernel, dilation, padding, stride).mT, format)
    y = (columns @ read(weight.flatten(1), format).mT).mT
    rows = (x.shape[2] + 2 * padding[0] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    y = torch.unflatten(y, -1, (rows, -1))
    return y if bias is None else y + bias[:, None, None]


def read(matrix: Tensor, format: OnChip) -> Tensor:
    """``matrix (..., K)`` packed along K and unpacked, in its own dtype. The gradient is that of the identity.

    Raises:
        UsageError: an 8-bit format and an element that is not finite.
    """
    if format == "float":
        return matrix
    # A backward pass is traced after compilation in some versions of PyTorch: only a dispatch mode shows it then.
    traced = torch.compiler.is_compiling() or (torch._C._len_torch_dispatch_stack() and not transformed())
    function = read_operator if traced else _Read.apply
    result: Tensor = function(matrix, format)  # type: ignore[no-untyped-call]
    return result


class _Read(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, format: OnChip) -> Tensor:
        return _packed(matrix.float(), format).to(matrix.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.clone()


@torch.library.custom_op("lamina::on_chip_read", mutates_args=())
def read_operator(matrix: Tensor, format: str) -> Tensor:
    """`read` where it is traced, which neither rules for forward mode nor errors that depend on values can be."""
    return _Read.forward(matrix, cast(OnChip, format)).contiguous()


read_operator.register_fake(lambda matrix, format: torch.empty_like(matrix, memory_format=torch.contiguous_format))
read_operator.register_autograd(lambda ctx, gradient: (gradient, None))


def _packed(values: Tensor, format: OnChip) -> Tensor:
    if format == "half":
        return values.half().float()
    if format == "deft16":
        return (_bits(values) & UPPER).view(torch.float32)
    if format == "deft16q":  # the upper value of a word keeps the bits of the lower one
        even = F.pad(values, (0, values.shape[-1] % 2))
        lower, upper = torch.unflatten(_bits(even) & UPPER, -1, (-1, 2)).unbind(-1)
        words = torch.stack([lower, upper | (lower >> 16 & 0xFFFF)], -1)
        return words.view(torch.float32).flatten(-2)[..., : values.shape[-1]]
    assert format != "float"
    return unpack(pack(values.reshape(-1, values.shape[-1]), format)).view(values.shape)


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32)
