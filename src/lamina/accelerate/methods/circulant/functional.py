"""Block-circulant linear maps, convolutions and LSTM recurrences with explicit choice of the implementation.

``impl="kernel"`` multiplies in the frequency domain. ``impl="materialized"`` builds circulant tiles in a kernel, for
linear maps with few rows, and convolves with the materialized matrix in split fp16. ``impl="fused_rows"`` transforms,
multiplies and transforms back in one kernel, for linear maps and pointwise convolutions of many rows in bf16, fp16 or
TF32.
``impl="dense"`` materializes the dense matrix and calls the vendor library. ``impl="reference"`` is plain PyTorch on
any device. The dissertation's versions, such as ``impl="fusion"``, are in `lamina.accelerate.papers`. `resolve_impl`
gives the implementation that ``auto`` stands for; none falls back to another unless ``fallback`` allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar
from typing import cast as cast_type

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.graph_constants import graph_constant
from lamina.accelerate.common.operands import HAS_TRITON, cast, check_operands, compute_dtype, has_kernels, owned, sizes
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.activations import InputActivation, activated, code
from lamina.accelerate.methods.circulant.config import PUBLISHED, Impl, check_block_size, check_impl
from lamina.accelerate.papers.circulant_ladder import functional as published
from lamina.errors import LaminaError, MissingError, UnsupportedError, UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])

if HAS_TRITON:
    from lamina.accelerate.methods.circulant import layer_ops, scaled_fp16
    from lamina.accelerate.methods.circulant.fused_rows import ops as fused_rows
    from lamina.accelerate.methods.circulant.lstm import ops as lstm_ops
    from lamina.accelerate.methods.circulant.materialized import convolution
    from lamina.accelerate.methods.circulant.materialized import ops as materialized
    from lamina.accelerate.methods.circulant.ops import check_device
    from lamina.accelerate.methods.circulant.spectral.ops import dft_eager
    from lamina.accelerate.runtime.replay import replays_one_operator
    from lamina.accelerate.runtime.triton_ops import INTERPRETED
else:
    INTERPRETED = False

    def replays_one_operator(function: _Function) -> _Function:
        """Nothing to replay without kernels."""
        return function


def resolve_impl(impl: str, x: Tensor) -> Impl:
    """The implementation that ``impl`` stands for with the input ``x``.

    ``auto`` is ``reference`` on other devices than a GPU, in float64 and under transforms of ``torch.func``, and
    ``kernel`` otherwise. It uses no timings; selection by measurement sets an explicit implementation. A former name
    gives the current one. Every other name stands for itself.

    Raises:
        UsageError: ``impl`` is unknown.
        MissingError: ``impl`` needs Triton, which is not installed.
    """
    impl = check_impl(impl)
    if impl == "auto":
        if not has_kernels(x) or x.dtype == torch.float64:
            return "reference"
        return "kernel"
    if impl in ("kernel", "materialized", "fused_rows") and not HAS_TRITON:
        raise MissingError(
            f'impl="{impl}" needs Triton: install lamina with its kernels extra, or use impl="reference"'
        )
    return impl


def impl_for(impl: str, x: Tensor, fallback: bool, refuses: Callable[[], object] = lambda: None) -> Impl:
    """The implementation of ``impl`` for ``x``: with ``fallback``, that of ``auto`` where ``impl`` does not compute it.

    ``refuses`` says why ``fused_rows`` does not.
    """
    if fallback and impl in ("kernel", "materialized", "fused_rows"):
        if not HAS_TRITON or not (has_kernels(x) or INTERPRETED):
            return resolve_impl("auto", x)
        if impl == "fused_rows" and refuses() is not None:
            return resolve_impl("auto", x)
    return resolve_impl(impl, x)


def executed(layer: Any) -> tuple[str, str]:
    """The implementation that computes a layer, in its written form, and why it is that one."""
    impl, weight = str(layer.impl), next(layer.parameters())
    resolved = impl_for(impl, weight, layer.fallback)
    given = "selected; auto computes what it refuses" if layer.fallback else "requested"
    reason = given if impl == resolved else f"auto on {weight.device.type}"
    if resolved in PUBLISHED and published.kernels_for(weight) is None:
        reason += f", in PyTorch operations on {weight.device.type}"
    return f"circulant[block_size={layer.block_size},impl={resolved}]", reason


@replays_one_operator
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out_features: int,
    signs: Tensor | None = None,
    input_activation: InputActivation | None = None,
    relu: bool = False,
    impl: Impl = "auto",
    fallback: bool = False,
) -> Tensor:
    """``y = x W^T + b`` with a block-circulant ``W``.

    Args:
        x: ``(..., in_features)``, any strides.
        weight: ``(p, q, k)``, the first columns of ``p`` by ``q`` blocks: ``ceil(out_features / k)`` by
            ``ceil(in_features / k)``.
        bias: ``(out_features,)``.
        out_features: output features; the rows of the last blocks beyond it are unused.
        signs: ``(k,)``, random signs, each 1 or -1, by which each block of input features is multiplied first.
        input_activation: what ``x`` passes first; ``fused_rows`` computes it as it reads rows.
        relu: whether the output is that of a ReLU; ``kernel`` and ``fused_rows`` compute it in their last kernel.
        impl: the implementation.
        fallback: whether ``auto`` computes what ``impl`` refuses: few rows, another dtype or another device.

    Returns:
        ``(..., out_features)``, in the dtype of ``x``, or of autocast.

    Raises:
        UsageError: shapes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support the dtype, or ``impl`` not the layer or the number of rows.
        MissingError: the kernels need a GPU, or Triton.
    """
    dtype = compute_dtype(x)
    operands = x, weight, bias, signs
    name = _settled(*operands, out_features, impl, fallback) if torch.compiler.is_dynamo_compiling() else ""
    name = name or _checked(*operands, out_features, impl, fallback)
    y: Tensor
    if name == "fused_rows":
        y, _ = fused_rows.linear_eager(x.to(dtype), weight, signs, bias, code(input_activation), relu)
        return y
    x = activated(x, input_activation)
    rows = prod(x.shape[:-1])  # numel() would specialize a dynamic batch
    if name == "kernel":
        return _spectral(x, weight, signs, bias, out_features, Conv2dProblem(rows), dtype, relu)
    if name in ("reference", "materialized", *PUBLISHED):
        x = reference.flip_signs(x, signs, x.dim() - 1)
    if name == "reference":
        y = reference.linear(x.to(dtype), weight.to(dtype), cast(bias, dtype), out_features)
    elif name == "dense":
        matrix = dense_matrix(weight[:, None], signs, out_features, x.shape[-1], 1, dtype)
        y = F.linear(x.to(dtype), matrix.squeeze(-1), cast(bias, dtype))
    else:
        flat, shape = x.reshape(rows, x.shape[-1]).to(dtype), (*x.shape[:-1], out_features)
        if name in PUBLISHED:
            y = published.linear(flat, weight.to(dtype), out_features, name)
            y = (y if bias is None else y + bias.to(dtype)).view(shape)
        else:
            y = materialized.linear_eager(flat, weight, out_features)
            y = owned(y if bias is None else y + bias.to(dtype), shape)
    return torch.relu(y) if relu else y


def _checked(
    x: Tensor, weight: Tensor, bias: Tensor | None, signs: Tensor | None, out_features: int, impl: str, fallback: bool
) -> str:
    """The implementation of a linear map, whose operands fit each other and it."""
    _check_weight(weight, 3, "(p, q, k)")
    check_operands(x, weight, bias, out_features)
    if not x.dim():
        raise UsageError("x: expected (..., in_features), got a scalar")
    _check_blocks(weight, out_features, x.shape[-1], 1)
    _check_signs(signs, weight)
    product = prod(x.shape[:-1]), x, compute_dtype(x), x.shape[-1], out_features, weight.shape[-1]
    name = impl_for(impl, x, fallback, lambda: fused_rows.refusal(*product))
    if name == "fused_rows":
        fused_rows.check(*product)
    return name


def _settled(
    x: Tensor, weight: Tensor, bias: Tensor | None, signs: Tensor | None, out_features: int, impl: str, fallback: bool
) -> str:
    """What `_checked` gives, as a constant for ``torch.compile``; nothing if it is to be traced, as what raises is.

    A compiled model evaluates guards for each function and global that was traced, at each call.
    """
    in_features = weight.shape[-2] * weight.shape[-1]  # a constant, where the size of the input may be symbolic
    if not x.dim() or x.is_nested or x.shape[-1] != in_features:
        return ""
    if impl == "fused_rows" and prod(x.shape[:-1]) < fused_rows.MIN_ROWS:
        return ""
    like = tuple(None if t is None else (tuple(t.shape), t.dtype, t.device) for t in (weight, bias, signs))
    name: str = _settled_of(in_features, x.dtype, x.device, like, out_features, impl, fallback)
    return name


@graph_constant
def _settled_of(
    in_features: int, dtype: torch.dtype, device: torch.device, like: tuple[Any, ...], out_features: int, impl: str,
    fallback: bool,
) -> str:  # fmt: skip
    """`_settled` from what ``torch.compile`` knows of operands: ``like`` has shape, dtype and device of the others."""
    rows = fused_rows.MIN_ROWS if HAS_TRITON else 1
    with FakeTensorMode():
        x = torch.empty(rows, in_features, dtype=dtype, device=device)
        weight, bias, signs = (None if t is None else torch.empty(t[0], dtype=t[1], device=t[2]) for t in like)
        try:
            return _checked(x, cast_type(Tensor, weight), bias, signs, out_features, impl, fallback)
        except LaminaError:
            return ""


def recurrence(inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The recurrence of an LSTM over all time steps, by the frequency-domain kernels: two launches per step.

    Args:
        inputs: ``(T, N, 4 * q * k)``, the input products with biases, for the input, forget, cell and output gate.
        weight: ``(4 * q, q, k)``, the hidden-to-hidden weight.
        h, c: ``(N, hidden_size)``, the initial state.

    Returns:
        The hidden states ``(T, N, hidden_size)`` and the last state ``(h, c)``, in the dtype of ``inputs``.

    Raises:
        UsageError: shapes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support the dtype.
        MissingError: the kernels need a GPU.
    """
    _check_weight(weight, 3, "(p, q, k)")
    check_operands(inputs, weight, None)
    _check_blocks(weight, inputs.shape[-1], h.shape[-1], 1)
    if inputs.dim() != 3 or not h.shape == c.shape == (inputs.shape[1], h.shape[-1]):
        got = ", ".join(map(sizes, (inputs, h, c)))
        raise UsageError(f"inputs, h, c: expected (T, N, gates) and two of (N, hidden_size), got {got}")
    check_device(inputs)
    ws = dft_eager(weight.flatten(1)[..., None], None, weight.shape[-1], 1, True, inputs.dtype)
    hidden, c, *_ = lstm_ops.recurrence_eager(inputs, ws, h.to(inputs.dtype), c.to(inputs.dtype), weight.shape[-1])
    return hidden, (hidden[-1], c)


@replays_one_operator
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out_channels: int,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    signs: Tensor | None = None,
    input_activation: InputActivation | None = None,
    relu: bool = False,
    impl: Impl = "auto",
    fallback: bool = False,
) -> Tensor:
    """A 1D or 2D convolution with a block-circulant channel matrix for each filter tap.

    Args:
        x: ``(N, C, L)`` or ``(N, C, H, W)``; the output has the same memory format.
        weight: ``(p, *kernel, q, k)`` with ``p = groups * ceil(out_channels / groups / k)`` and
            ``q = ceil(C / groups / k)``.
        bias: ``(out_channels,)``.
        out_channels: output channels, a multiple of ``groups``.
        stride, padding, dilation: one integer, or one for each spatial dimension.
        groups: blocked connections from input to output channels, as in `torch.nn.Conv2d`.
        signs: ``(k,)``, random signs, each 1 or -1, by which each block of input channels is multiplied first.
        input_activation, relu, impl, fallback: as in `linear`.

    Returns:
        ``(N, out_channels, L')`` or ``(N, out_channels, H', W')``, in the dtype of ``x``, or of autocast.

    Raises:
        UsageError: shapes, dtypes or devices do not match.
        UnsupportedError: the kernels do not support the dtype, or ``impl`` not the layer or the number of rows.
        MissingError: the kernels need a GPU, or Triton.
    """
    axes = weight.dim() - 3
    if axes not in (1, 2):
        raise UsageError(f"weight: expected (p, *kernel, q, k) with one or two kernel dimensions, got {sizes(weight)}")
    _check_weight(weight, axes + 3, "(p, *kernel, q, k)")
    check_operands(x, weight, bias, out_channels)
    if x.dim() != axes + 2:
        raise UsageError(f"x: expected {axes + 2} dimensions, (N, C, {'L' if axes == 1 else 'H, W'}), got {sizes(x)}")
    if groups < 1 or x.shape[1] % groups or out_channels % groups:
        raise UsageError(
            f"groups: expected a divisor of {x.shape[1]} input and {out_channels} output channels, got {groups}"
        )
    _check_blocks(weight, out_channels, x.shape[1], groups)
    _check_signs(signs, weight)
    stride, padding, dilation = (_axes(size, axes) for size in (stride, padding, dilation))
    if axes == 1:
        flat = conv(
            x[:, :, None], weight[:, None], bias, out_channels=out_channels, stride=(1, *stride),
            padding=(0, *padding), dilation=(1, *dilation), groups=groups, signs=signs,
            input_activation=input_activation, relu=relu, impl=impl, fallback=fallback,
        )  # fmt: skip
        return owned(flat, (*flat.shape[:2], flat.shape[3]))
    window = _window(x, weight, stride, padding, dilation, groups)
    dtype = compute_dtype(x)
    name = impl_for(impl, x, fallback, lambda: _pointwise_refusal(x, weight, out_channels, window, dtype))
    if name == "fused_rows":
        return _pointwise(x, weight, signs, bias, out_channels, window, dtype, code(input_activation), relu)
    x = activated(x, input_activation)
    if name == "kernel":
        return _spectral(x, weight, signs, bias, out_channels, window, dtype, relu)
    y: Tensor
    if name == "reference":
        x = reference.flip_signs(x, signs, groups=groups)
        y = reference.conv(x.to(dtype), weight.to(dtype), cast(bias, dtype), out_channels, window)
    elif name == "dense":
        taps = weight.flatten(1, 2)
        channels_last = x.stride(1) == 1  # the library wants weights in the memory format of the images
        matrix = dense_matrix(taps, signs, out_channels, x.shape[1] // groups, groups, dtype, channels_last)
        matrix = torch.unflatten(matrix, -1, weight.shape[1:3])
        y = F.conv2d(x.to(dtype), matrix, cast(bias, dtype), stride, padding, dilation, groups)
    elif name in PUBLISHED:
        images = reference.flip_signs(x, signs, groups=groups).to(dtype)
        y = published.conv(images, weight.to(dtype), out_channels, window, name)
        y = y if bias is None else y + bias.to(dtype)[:, None, None]
    else:
        operands = x.flatten(2).to(dtype), weight.flatten(1, 2).to(dtype), signs, cast(bias, dtype)
        y, *_ = convolution.conv_eager(*operands, out_channels, tuple(window.pack()))
        y = owned(y, (*y.shape[:2], window.out_height, window.out_width))
    return torch.relu(y) if relu else y


def _spectral(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: Conv2dProblem,
    dtype: torch.dtype, relu: bool,
) -> Tensor:  # fmt: skip
    """The frequency-domain kernels, which read operands of any strides."""
    check_device(x)
    scaled = scaled_fp16.applies(dtype, x, weight, outputs, window)
    y: Tensor
    y, *_ = layer_ops.layer_eager(x, weight, signs, bias, outputs, tuple(window.pack()), dtype, scaled, relu)
    return y


def _pointwise(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: Conv2dProblem,
    dtype: torch.dtype, activation: int, relu: bool,
) -> Tensor:  # fmt: skip
    """A convolution that is a linear map of pixels, whose channels are contiguous, by the fused kernels."""
    if (refusal := _pointwise_refusal(x, weight, outputs, window, dtype)) is not None:
        raise refusal
    pixels = x.permute(0, 2, 3, 1)
    y: Tensor
    y, _ = fused_rows.linear_eager(pixels.to(dtype), weight.flatten(0, 2), signs, bias, activation, relu)
    return y.permute(0, 3, 1, 2)


def _pointwise_refusal(
    x: Tensor, weight: Tensor, outputs: int, window: Conv2dProblem, dtype: torch.dtype
) -> LaminaError | None:
    """Why the fused kernels do not compute a convolution; None if they do."""
    if not window.pointwise or (window.padding_height, window.padding_width) != (0, 0) or window.groups > 1:
        return UnsupportedError(
            "fused_rows: expected a linear layer, or a convolution by a 1x1 kernel with stride 1, without padding and "
            'groups; use impl="kernel"'
        )
    if refusal := fused_rows.refusal(window.rows_in, x, dtype, x.shape[1], outputs, weight.shape[-1]):
        return refusal
    if not x.permute(0, 2, 3, 1).is_contiguous():
        return UnsupportedError(
            f"fused_rows: expected images in channels-last, got strides {tuple(x.stride())}; call "
            'x.contiguous(memory_format=torch.channels_last), or use impl="kernel"'
        )
    return None


def dense_matrix(
    weight: Tensor, signs: Tensor | None, rows: int, columns: int, groups: int, dtype: torch.dtype,
    channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """The dense matrix ``(rows, columns, taps)`` of ``weight (P, taps, q, k)``, by a kernel if one can run."""
    if has_kernels(weight):
        shape = rows, columns, groups, channels_last
        matrix: Tensor = materialized.dense_matrix_eager(weight.to(dtype), signs, *shape)
        return matrix
    return reference.dense_matrix(weight.to(dtype), rows, columns * groups, groups, signs)


def _axes(size: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (size,) * axes if isinstance(size, int) else tuple(size)


def _window(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Conv2dProblem:
    for name, values, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if len(values) != 2 or min(values) < least:
            raise UsageError(f"{name}: expected one integer >= {least} for each dimension, got {tuple(values)}")
    batch, _, height, width = x.shape
    _, kernel_height, kernel_width, _, _ = weight.shape
    window = Conv2dProblem.unpack(
        [batch, height, width, kernel_height, kernel_width, *stride, *padding, *dilation, groups]
    )
    if window.out_height < 1 or window.out_width < 1:
        raise UsageError(
            f"x: expected a padded image at least as large as the {kernel_height}x{kernel_width} kernel with "
            f"dilation {tuple(dilation)}, got {height}x{width} with padding {tuple(padding)}"
        )
    return window


def _check_weight(weight: Tensor, axes: int, form: str) -> None:
    if weight.dim() != axes:
        raise UsageError(f"weight: expected {form}, got {sizes(weight)}")
    check_block_size(int(weight.shape[-1]))


def _check_signs(signs: Tensor | None, weight: Tensor) -> None:
    if signs is not None and signs.shape != weight.shape[-1:]:
        raise UsageError(f"signs: expected ({weight.shape[-1]},), one for each element of a block, got {sizes(signs)}")


def _check_blocks(weight: Tensor, out_width: int, in_width: int, groups: int) -> None:
    k = weight.shape[-1]
    expected = groups * -(-(out_width // groups) // k), -(-(in_width // groups) // k)
    got = weight.shape[0], weight.shape[-2]
    if got != expected:
        grouped = f" in {groups} groups" if groups > 1 else ""
        raise UsageError(
            f"weight: expected {expected[0]} by {expected[1]} blocks of size {k} for {in_width} inputs and "
            f"{out_width} outputs{grouped}, got {got[0]} by {got[1]}: does the layer match its input?"
        )
