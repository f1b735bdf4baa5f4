"""Fused layers: operands are checked, then the implementation ``impl`` runs.

``kernel`` is a Triton kernel, ``cublaslt`` the epilogue of cuBLASLt (linear layers with ReLU and a bias), ``reference``
plain PyTorch on any device. `chosen` resolves ``auto``; no other implementation falls back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.activation_names import Activation
from lamina.accelerate.common.choices import check_choice
from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.common.graph_constants import graph_constant
from lamina.accelerate.common.operands import HAS_TRITON, cast, check_operands, compute_dtype, has_kernels, sizes
from lamina.accelerate.methods.fusion import reference
from lamina.accelerate.methods.fusion.config import ACTIVATIONS, IMPLS, Impl
from lamina.errors import MissingError, UnsupportedError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.fusion import ops
    from lamina.accelerate.runtime.triton_ops import check_kernel_operand


MAX_WINDOW = 127
"""Pixels of a pooling window: the index of the selected one is stored in a signed byte."""


def chosen(impl: Impl, x: Tensor, activation: Activation = "relu", biased: bool = True, product: bool = True) -> Impl:
    """Resolve ``auto``; any other ``impl`` is checked and returned.

    ``auto`` is ``reference`` off the GPU and in float64. For a ``product`` (a linear layer) it is ``cublaslt`` where
    that has the epilogue (ReLU with a bias), except in float32 without TF32: cuBLASLt then uses no tensor cores, and
    ``kernel`` computes 3xTF32, which is faster. Elsewhere it is ``kernel``.

    Raises:
        UsageError: no such implementation.
        MissingError: ``impl`` needs Triton or a GPU, which is not there.
        UnsupportedError: cuBLASLt has no such epilogue.
    """
    check_choice("impl", impl, IMPLS)
    if impl == "auto":
        if not has_kernels(x) or x.dtype == torch.float64:
            return "reference"
        strict = x.dtype == torch.float32 and _strict_float32()
        return "cublaslt" if product and activation == "relu" and biased and not strict else "kernel"
    if impl == "cublaslt":
        if not product:
            raise UnsupportedError('impl="cublaslt" is for linear layers; convolutions have "kernel" and "reference"')
        if activation != "relu" or not biased:
            what = activation if activation != "relu" else "a layer without bias"
            raise UnsupportedError(f'impl="cublaslt": expected ReLU and a bias, got {what}; use "kernel"')
        if not x.is_cuda:
            raise MissingError(f'impl="cublaslt": expected tensors on a CUDA device, got {x.device}')
    if impl != "reference" and not HAS_TRITON:
        raise MissingError(f'impl="{impl}" needs Triton: install lamina with its kernels extra, or use "reference"')
    return impl


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "relu",
    impl: Impl = "auto",
    l1_bypass: bool = False,
) -> Tensor:
    """``activation(x W^T + b)``.

    Args:
        x: ``(..., in_features)``, of any strides.
        weight: ``(out_features, in_features)``.
        bias: ``(out_features,)``.
        activation: applied to the product.
        impl: the implementation.
        l1_bypass: whether the kernel's loads bypass L1.

    Returns:
        ``(..., out_features)``, in the dtype of ``x``, or of autocast.

    Raises:
        UsageError: sizes, dtypes or devices do not fit.
        UnsupportedError: the implementation does not support this dtype or activation.
        MissingError: it needs a GPU, or Triton.
    """
    check_choice("activation", activation, ACTIVATIONS)
    if weight.dim() != 2:
        raise UsageError(f"weight: expected (out_features, in_features), got {sizes(weight)}")
    check_operands(x, weight, bias)
    if not x.dim() or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"x: expected (..., {weight.shape[1]}), got {sizes(x)}")
    name = chosen(impl, x, activation, bias is not None)
    dtype = compute_dtype(x)
    x, weight, bias = x.to(dtype), weight.to(dtype), cast(bias, dtype)
    if name == "reference":
        return reference.linear(x, weight, bias, activation)
    flat = x.reshape(-1, x.shape[-1])
    y: Tensor
    if name == "cublaslt":
        assert bias is not None
        y = ops.linear_cublaslt_eager(flat, weight, bias)
    else:
        check_kernel_operand(flat, *ops.KERNELS)
        keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (flat, weight, bias))
        y, _ = ops.linear_eager(flat, weight, bias, activation, keep, l1_bypass)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    pool: Pool2dGeometry | None = None,
    impl: Impl = "auto",
    l1_bypass: bool = False,
) -> Tensor:
    """``max_pool(relu(conv(x) + b))``: the library's convolution without a bias, then one kernel for the rest.

    Args:
        x: ``(N, C, H, W)``, channels-last or not; the output has its memory format.
        weight: ``(out_channels, C / groups, KH, KW)``.
        bias: ``(out_channels,)``.
        stride, padding, dilation, groups: as for ``torch.nn.functional.conv2d``.
        pool: the max pooling, if any.
        impl: the implementation of what follows the convolution.
        l1_bypass: whether the kernel's loads bypass L1.

    Raises:
        UsageError, UnsupportedError, MissingError: as `linear` does.
    """
    if weight.dim() != 4:
        raise UsageError(f"weight: expected (out_channels, in_channels, KH, KW), got {sizes(weight)}")
    check_operands(x, weight, bias)
    if x.dim() != 4 or x.shape[1] != weight.shape[1] * groups:
        raise UsageError(f"x: expected (N, {weight.shape[1] * groups}, H, W), got {sizes(x)}")
    chosen(impl, x, product=False)
    y = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    return bias_relu_max_pool2d(y, cast(bias, y.dtype), pool, impl=impl, l1_bypass=l1_bypass)


def bias_relu_max_pool2d(
    x: Tensor,
    bias: Tensor | None = None,
    pool: Pool2dGeometry | None = None,
    *,
    impl: Impl = "auto",
    l1_bypass: bool = False,
) -> Tensor:
    """``max_pool(relu(x + b))`` of ``x (N, C, H, W)`` in one kernel, and in one kernel in the backward pass.

    Saves one byte for each output element for the backward pass. Of equal elements of a window the first is selected;
    NaN is selected over other values.

    Raises:
        UsageError, UnsupportedError, MissingError: as `linear` does.
    """
    geometry = pool or Pool2dGeometry()
    if x.dim() != 4:
        raise UsageError(f"x: expected (N, C, H, W), got {sizes(x)}")
    check_operands(x, None, bias)
    if bias is not None and bias.shape != x.shape[1:2]:
        raise UsageError(f"bias: expected ({x.shape[1]},), got {sizes(bias)}")
    check_pool(geometry)
    geometry.output_size(x.shape[2], x.shape[3])
    if chosen(impl, x, product=False) == "reference":
        return reference.bias_relu_max_pool(x, bias, geometry)
    check_kernel_operand(x, *ops.KERNELS)
    y: Tensor
    y, _ = ops.bias_relu_max_pool_eager(x, bias, geometry.pack(), l1_bypass)
    return y


def check_pool(pool: Pool2dGeometry) -> None:
    """Refuse a pooling window that is too large for the kernel.

    Raises:
        UsageError: naming the limit.
    """
    if pool.taps > MAX_WINDOW:
        raise UsageError(f"pooling: expected a window of at most {MAX_WINDOW} pixels, got {pool.taps}")


@graph_constant  # torch.compile cannot trace the read of this setting
def _strict_float32() -> bool:
    return bool(torch.backends.cuda.matmul.fp32_precision != "tf32")
