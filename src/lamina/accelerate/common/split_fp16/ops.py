"""Split-fp16 amax, split and convolution as PyTorch operators, and as functions that other operators call.

Operands are split rows ``[terms, rows, channels]`` and split weights ``[terms, outputs, taps, inputs]``, each with the
partial amaxes that determine its scale, or None for 16-bit dtypes, which are not scaled.
"""

import torch
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.common.split_fp16 import kernels
from lamina.accelerate.common.split_fp16.tiles import backward_weight_tile, conv_tile, split_k_for
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, index_type, pdl_options, reach
from lamina.accelerate.runtime.triton_utils import fast_divisor

_BLOCK = 4096


def _amax_like(x: Tensor) -> Tensor:
    return x.new_empty(_num_partials(x.numel()), dtype=torch.float32)


def _num_partials(numel: int) -> int:
    return clamp(1, next_power_of_2(-(-numel // _BLOCK)), kernels.MAX_PARTIALS)


def pair_amax(
    x: Tensor, y: Tensor | None = None, /, *, overflow: Tensor | None = None, sample_stride: int = 1
) -> tuple[Tensor, int, int]:
    """`partial_amax` of one or two tensors in one launch, and the number of partials of each.

    Tensors with gaps are copied.

    Args:
        x: float32.
        y: float32.
        overflow: int32 flag ``[1]``. A sampled amax clears it, for a later kernel to set on overflow. A full amax is
            computed only if the flag is set.
        sample_stride: one block of this many is read of ``x``; 1 for a full amax.

    Returns:
        The partials of ``x``, then of ``y``, and their numbers.
    """
    x, x_numel = _without_gaps(x)
    y, y_numel = (x, 0) if y is None else _without_gaps(y)
    x_partials, y_partials = _num_partials(x_numel // sample_stride), _num_partials(y_numel) if y_numel else 0
    out = x.new_empty(x_partials + y_partials, dtype=torch.float32)
    # The number of programs is bounded, so large tensors use larger ones.
    large = max(x_numel // sample_stride, y_numel) > _BLOCK * kernels.MAX_PARTIALS
    launch(
        kernels.pair_amax_kernel, out.numel(), x,
        x, y, out, out if overflow is None else overflow, x_numel, y_numel, x_partials, y_partials,
        SAMPLE_STRIDE=sample_stride, RETRY=overflow is not None and sample_stride == 1,
        BLOCK=2 * _BLOCK if large else _BLOCK, INDEX=index_type(x, y), **pdl_options(x, y),
        num_warps=8 if large else 4,
    )  # fmt: skip
    return out, x_partials, y_partials


def _without_gaps(x: Tensor) -> tuple[Tensor, int]:
    """``x``, copied if there are gaps between its elements, and the number of distinct elements in memory."""
    size = reach(x)
    return (x, size) if 0 < size <= x.numel() else (x.contiguous(), x.numel())


def run_amax(x: Tensor) -> Tensor:
    """The largest finite magnitudes of parts of ``x``, float32; their number is a power of two.

    ``x`` is dense in memory, in any dimension order. Kernels derive the scale from them: see `kernels.load_scale`.
    """
    out = _amax_like(x)
    launch(kernels.amax_kernel, out.numel(), x, x, out, x.numel(), BLOCK=_BLOCK, INDEX=index_type(x))
    return out


partial_amax = torch.library.custom_op("lamina::split_fp16_amax", run_amax, mutates_args=())


@partial_amax.register_fake
def _(x: Tensor) -> Tensor:
    return _amax_like(x)


def _split_like(x: Tensor, terms: int) -> Tensor:
    dtype = torch.float16 if x.dtype == torch.float32 else x.dtype
    return x.new_empty(terms, x.shape[0] * x.shape[2], x.shape[1], dtype=dtype)


def run_split(x: Tensor, partial_amax: Tensor | None, terms: int) -> Tensor:
    """The split ``[terms, N*L, C]`` of ``x (N, C, L)`` of any strides, with contiguous channels.

    float32 is scaled by the power of two that follows from ``partial_amax`` and split into fp16 hi and lo. 16-bit
    dtypes have one term, unscaled, without ``partial_amax``. Nonfinite values are in the hi term.
    """
    out = _split_like(x, terms)
    (n, c, length), (stride_n, stride_c, stride_l) = x.shape, x.stride()
    if length == 1 or stride_n == length * stride_l:  # all rows have one stride: treat the batch as one image
        n, length, stride_l = 1, n * length, stride_n // length
    block_l, block_c = clamp(16, next_power_of_2(length), 64), clamp(16, next_power_of_2(c), 64)
    tiles_l, tiles_c = -(-length // block_l), -(-c // block_c)
    launch(
        kernels.split_fp16_kernel, n * tiles_l * tiles_c, x,
        x, x if partial_amax is None else partial_amax, out,
        length, c, tiles_l, tiles_c, stride_n, stride_c, stride_l, x.numel(),
        TERMS=terms, PARTIALS=_num_scale_partials(partial_amax), TARGET_EXPONENT=kernels.TARGET_EXPONENT,
        BLOCK_L=block_l, BLOCK_C=block_c, INDEX=index_type(x, out),
    )  # fmt: skip
    return out


split = torch.library.custom_op("lamina::split_fp16", run_split, mutates_args=())


@split.register_fake
def _(x: Tensor, partial_amax: Tensor | None, terms: int) -> Tensor:
    return _split_like(x, terms)


def window_constexprs(window: Conv2dProblem) -> dict[str, int]:
    """The constexprs of a convolution's geometry."""
    return {
        "GROUPS": window.groups, "TAPS": window.taps, "KW": window.kernel_width,
        "SH": window.stride_height, "SW": window.stride_width,
        "PH": window.padding_height, "PW": window.padding_width,
        "DH": window.dilation_height, "DW": window.dilation_width,
    }  # fmt: skip


def _num_scale_partials(partial_amax: Tensor | None) -> int:
    return 0 if partial_amax is None else partial_amax.numel()


def split_fp16_conv(
    a: Tensor, a_amax: Tensor | None, w: Tensor, w_amax: Tensor | None, bias: Tensor | None, out: Tensor,
    window: Conv2dProblem, backward_data: bool,
) -> None:  # fmt: skip
    """A convolution of split operands, or with ``backward_data`` its input gradient, to ``out (N, C, L)``."""
    (terms, rows_a, channels), (_, outputs, taps, inputs) = a.shape, w.shape
    rows, kept = out.shape[0] * out.shape[2], out.shape[1] // window.groups
    sizes = (window.out_height, window.out_width), (window.height, window.width)
    out_size, in_size = sizes[::-1] if backward_data else sizes
    summed = channels // window.groups
    tile = conv_tile(rows, kept, summed, terms)
    tiles = -(-rows // tile.block_m)
    launch(
        kernels.conv_kernel, window.groups * tiles * -(-kept // tile.block_n), a,
        a, w, out if bias is None else bias, out if a_amax is None else a_amax, out if w_amax is None else w_amax,
        out, rows, tiles, *out_size, *in_size, *map(fast_divisor, out_size),
        rows_a * channels, outputs * taps * inputs,
        *out.stride(),
        IN_CHANNELS=summed, OUT_CHANNELS=kept, **window_constexprs(window), BACKWARD_DATA=backward_data, TERMS=terms,
        A_PARTIALS=_num_scale_partials(a_amax), W_PARTIALS=_num_scale_partials(w_amax),
        TARGET_EXPONENT=kernels.TARGET_EXPONENT, BIAS=bias is not None, CHANNELS_LAST=out.stride(1) == 1,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, UPCAST=INTERPRETED, INDEX=index_type(a, out),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def split_fp16_conv_backward_weight(
    dy: Tensor, dy_amax: Tensor | None, a: Tensor, a_amax: Tensor | None, window: Conv2dProblem
) -> Tensor:
    """The weight gradient ``(outputs, taps, inputs)``, float32, of a convolution of split ``a``."""
    (terms, rows, channels), rows_a, inputs = dy.shape, a.shape[1], a.shape[2] // window.groups
    outputs, columns = channels // window.groups, window.taps * inputs
    tile = backward_weight_tile(rows, outputs, columns, terms)
    tiles = window.groups * -(-outputs // tile.block_m) * -(-columns // tile.block_n)
    iterations = -(-rows // tile.block_k)
    split_k = split_k_for(tiles, iterations, channels * columns, tile, terms)
    rows_per_split = max(1, -(-iterations // split_k)) * tile.block_k
    split_k = max(1, -(-rows // rows_per_split))
    out = dy.new_empty(split_k, channels, window.taps, inputs, dtype=torch.float32)
    out_size, in_size = (window.out_height, window.out_width), (window.height, window.width)
    launch(
        kernels.conv_backward_weight_kernel, tiles * split_k, dy,
        dy, a, out if dy_amax is None else dy_amax, out if a_amax is None else a_amax, out, rows, rows_per_split,
        *out_size, *in_size, *map(fast_divisor, out_size), rows * channels, rows_a * a.shape[2],
        OUTPUTS=outputs, INPUTS=inputs, **window_constexprs(window), TERMS=terms,
        DY_PARTIALS=_num_scale_partials(dy_amax), A_PARTIALS=_num_scale_partials(a_amax),
        TARGET_EXPONENT=kernels.TARGET_EXPONENT, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k,
        UPCAST=INTERPRETED, INDEX=index_type(dy, a, out),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out[0] if split_k == 1 else out.sum(0)
