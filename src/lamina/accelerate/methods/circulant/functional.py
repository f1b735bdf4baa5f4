"""Block-circulant linear maps and convolutions: checked, and computed the way that was asked for.

``impl`` says how: ``kernel`` multiplies in the frequency domain, ``expand`` makes circulant tiles on the fly for linear
maps with few rows, and convolves with the matrix as float16 halves, ``dense`` writes the matrix out and leaves the
product to the vendor library, ``reference`` is plain PyTorch on any device. `chosen` tells what ``auto`` means for
given tensors; nothing falls back on anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.operands import HAS_TRITON, cast, check_operands, compute_dtype, has_kernels, owned, sizes
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.methods.circulant.config import Impl, check_block_size, check_impl
from lamina.accelerate.methods.circulant.window import Window
from lamina.errors import MissingError, UsageError

if HAS_TRITON:
    from lamina.accelerate.methods.circulant import layer, scaled
    from lamina.accelerate.methods.circulant.lstm import ops as recurrent
    from lamina.accelerate.methods.circulant.materialized import convolution
    from lamina.accelerate.methods.circulant.materialized import ops as expanded_ops
    from lamina.accelerate.methods.circulant.ops import check_device
    from lamina.accelerate.methods.circulant.spectral.ops import dft_directly


def chosen(impl: Impl, x: Tensor) -> Impl:
    """The implementation that ``impl`` stands for; only ``auto`` is anything but itself.

    ``auto`` is the reference off the GPU, in float64 and under transforms of ``torch.func``, and the frequency kernels
    otherwise. It knows no times: a `Dispatcher` that has measured names an implementation instead.

    Raises:
        UsageError: no such implementation.
        MissingError: ``impl`` needs Triton, which is not installed.
    """
    check_impl(impl)
    if impl == "auto":
        if not has_kernels(x) or x.dtype == torch.float64:
            return "reference"
        return "kernel"
    if impl in ("kernel", "expand") and not HAS_TRITON:
        raise MissingError(
            f'impl="{impl}" needs Triton: install lamina with its kernels extra, or use impl="reference"'
        )
    return impl


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out_features: int,
    signs: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """``y = x W^T + b`` with a block-circulant ``W``.

    Args:
        x: ``(..., in_features)``, of any strides.
        weight: ``(p, q, k)``, first columns of ``p`` by ``q`` blocks: ``ceil(out_features / k)`` by
            ``ceil(in_features / k)``.
        bias: ``(out_features,)``.
        out_features: the output's width; rows of the last blocks beyond it are not used.
        signs: ``(k,)``, what the numbers of each block of the input are multiplied by first.
        impl: how to compute it.

    Returns:
        ``(..., out_features)``, in the type of ``x``, or of autocast.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the kernels do not take this type.
        MissingError: the kernels need a GPU, or Triton.
    """
    _check_weight(weight, 3, "(p, q, k)")
    check_operands(x, weight, bias, out_features)
    if not x.dim():
        raise UsageError("x: expected (..., in_features), got a scalar")
    _check_blocks(weight, out_features, x.shape[-1], 1)
    _check_signs(signs, weight)
    name = chosen(impl, x)
    dtype = compute_dtype(x)
    if name in ("reference", "expand"):
        x = reference.signed(x, signs, x.dim() - 1)
    if name == "reference":
        return reference.linear(x.to(dtype), weight.to(dtype), cast(bias, dtype), out_features)
    if name == "dense":
        matrix = dense_matrix(weight[:, None], signs, out_features, x.shape[-1], 1, dtype)
        dense: Tensor = F.linear(x.to(dtype), matrix.squeeze(-1), cast(bias, dtype))
        return dense
    rows = x.shape[:-1].numel()  # here, since an exporter would take a number for all batches from it
    if name == "kernel":
        return _spectral(x, weight, signs, bias, out_features, Window(rows), dtype)
    y: Tensor = expanded_ops.expand_directly(x.reshape(rows, x.shape[-1]).to(dtype), weight, out_features)
    return owned(y if bias is None else y + bias.to(dtype), (*x.shape[:-1], out_features))


def recurrence(inputs: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """All steps of a long short-term memory by the frequency kernels, two launches each.

    Args:
        inputs: ``(T, N, 4 * q * k)``, what steps and biases give the gates: input, forget, cell and output.
        weight: ``(4 * q, q, k)``, from hidden states to gates.
        h, c: ``(N, hidden_size)``, the state to begin with.

    Returns:
        ``(T, N, hidden_size)``, and the last state, in the type of ``inputs``.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError, MissingError: the kernels do not take this type, or need a GPU.
    """
    _check_weight(weight, 3, "(p, q, k)")
    check_operands(inputs, weight, None)
    _check_blocks(weight, inputs.shape[-1], h.shape[-1], 1)
    if not inputs.dim() == 3 or not h.shape == c.shape == (inputs.shape[1], h.shape[-1]):
        raise UsageError(
            f"inputs, h, c: expected (T, N, gates) and twice (N, cells), got {', '.join(map(sizes, (inputs, h, c)))}"
        )
    check_device(inputs)
    ws = dft_directly(weight.flatten(1)[..., None], None, weight.shape[-1], 1, True, inputs.dtype)
    hidden, c, *_ = recurrent.directly(inputs, ws, h.to(inputs.dtype), c.to(inputs.dtype), weight.shape[-1])
    return hidden, (hidden[-1], c)


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
    impl: Impl = "auto",
) -> Tensor:
    """A 1-d or 2-d convolution whose channels are mixed by block-circulant matrices, one for each tap.

    Args:
        x: ``(N, C, L)`` or ``(N, C, H, W)``, channels-last or not; the output follows.
        weight: ``(p, *kernel, q, k)`` with ``p = groups * ceil(out_channels / groups / k)`` and
            ``q = ceil(C / groups / k)``.
        bias: ``(out_channels,)``.
        out_channels: channels of the output, a multiple of ``groups``.
        stride, padding, dilation: one number, or one for each spatial axis.
        groups: independent shares of the channels.
        signs: ``(k,)``, what the channels of each block of the input are multiplied by first.
        impl: how to compute it.

    Raises:
        UsageError: sizes, types or devices do not fit.
        UnsupportedError: the kernels do not take this type.
        MissingError: the kernels need a GPU, or Triton.
    """
    axes = weight.dim() - 3
    if axes not in (1, 2):
        raise UsageError(f"weight: expected (p, *kernel, q, k) with one or two kernel axes, got {sizes(weight)}")
    _check_weight(weight, axes + 3, "(p, *kernel, q, k)")
    check_operands(x, weight, bias, out_channels)
    if x.dim() != axes + 2:
        raise UsageError(f"x: expected {axes + 2} axes, (N, C, {'L' if axes == 1 else 'H, W'}), got {sizes(x)}")
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
            padding=(0, *padding), dilation=(1, *dilation), groups=groups, signs=signs, impl=impl,
        )  # fmt: skip
        return owned(flat, (*flat.shape[:2], flat.shape[3]))
    window = _window(x, weight, stride, padding, dilation, groups)
    name = chosen(impl, x)
    dtype = compute_dtype(x)
    if name == "reference":
        x = reference.signed(x, signs, groups=groups)
        return reference.conv(x.to(dtype), weight.to(dtype), cast(bias, dtype), out_channels, window)
    if name == "dense":
        taps = weight.flatten(1, 2)
        last = x.stride(1) == 1  # as the library wants the weights of such images
        matrix = dense_matrix(taps, signs, out_channels, x.shape[1] // groups, groups, dtype, last)
        matrix = torch.unflatten(matrix, -1, weight.shape[1:3])
        return F.conv2d(x.to(dtype), matrix, cast(bias, dtype), stride, padding, dilation, groups)
    if name == "kernel":
        return _spectral(x, weight, signs, bias, out_channels, window, dtype)
    y: Tensor
    operands = x.flatten(2).to(dtype), weight.flatten(1, 2).to(dtype), signs, cast(bias, dtype)
    y, *_ = convolution.directly(*operands, out_channels, tuple(window.pack()))
    return owned(y, (*y.shape[:2], window.out_height, window.out_width))


def _spectral(
    x: Tensor, weight: Tensor, signs: Tensor | None, bias: Tensor | None, outputs: int, window: Window,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """By the frequency kernels, operands as they are."""
    check_device(x)
    halved = scaled.halved(dtype, x, weight, outputs, window)
    y: Tensor
    y, *_ = layer.directly(x, weight, signs, bias, outputs, tuple(window.pack()), dtype, halved)
    return y


def dense_matrix(
    weight: Tensor, signs: Tensor | None, rows: int, columns: int, groups: int, dtype: torch.dtype,
    channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """``(rows, columns, taps)`` in ``dtype`` of ``weight (P, taps, q, k)``, by the kernel where it can run."""
    if has_kernels(weight):
        shape = rows, columns, groups, channels_last
        matrix: Tensor = expanded_ops.materialise_directly(weight.to(dtype), signs, *shape)
        return matrix
    return reference.dense_matrix(weight.to(dtype), rows, columns * groups, groups, signs)


def _axes(size: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (size,) * axes if isinstance(size, int) else tuple(size)


def _window(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Window:
    for name, values, least in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if len(values) != 2 or min(values) < least:
            raise UsageError(f"{name}: expected one number >= {least} for each axis, got {tuple(values)}")
    batch, _, height, width = x.shape
    _, kernel_height, kernel_width, _, _ = weight.shape
    window = Window.unpack([batch, height, width, kernel_height, kernel_width, *stride, *padding, *dilation, groups])
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
        raise UsageError(f"signs: expected ({weight.shape[-1]},), one for each number of a block, got {sizes(signs)}")


def _check_blocks(weight: Tensor, out_width: int, in_width: int, groups: int) -> None:
    k = weight.shape[-1]
    expected = groups * -(-(out_width // groups) // k), -(-(in_width // groups) // k)
    got = weight.shape[0], weight.shape[-2]
    if got != expected:
        share = f" in {groups} groups" if groups > 1 else ""
        raise UsageError(
            f"weight: expected {expected[0]} by {expected[1]} blocks of size {k} for {in_width} inputs and "
            f"{out_width} outputs{share}, got {got[0]} by {got[1]}: does the layer fit its input?"
        )
