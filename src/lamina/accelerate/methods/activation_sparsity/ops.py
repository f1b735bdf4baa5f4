"""The kernels as functions of tensors, and the layers as PyTorch operators with derivatives.

A map is ``(N, C, H, W)`` of any strides; `matrix_as_map` reads a matrix as one. Weights come as ``at (taps * C, M)``, a
row for each row of the map's matrix, so that what a non-zero is multiplied by lies side by side. float32 products on
tensor cores follow ``torch.backends.cuda.matmul.allow_tf32``, as the library's do: three TF32 products keep float32
accuracy.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.split_fp16 import ops as halves_ops
from lamina.accelerate.common.tiling import clamp, next_power_of_2
from lamina.accelerate.methods.activation_sparsity import kernels
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda as compiled
from lamina.accelerate.methods.activation_sparsity.ellpack.format import LARGEST_EXPONENT, PANEL, EllpackDib, panels_of
from lamina.accelerate.methods.activation_sparsity.row_union import ops as living
from lamina.accelerate.methods.activation_sparsity.split_fp16.ops import gapless, parts_for, weights
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, convert_tile, nonzero_tile, union_tile
from lamina.accelerate.methods.activation_sparsity.window import Window
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import GROUP_SIZE_M, INTERPRETED, index_type
from lamina.accelerate.runtime.triton_ops import check_kernel_operand as check_kernels
from lamina.errors import UnsupportedError

PIXEL = Window()
STORED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_operand(tensor: Tensor) -> None:
    """Refuse what no kernel can read; see `lamina.accelerate.runtime.triton_ops.check_operand`."""
    check_kernels(tensor, "sparsity", 'use impl="reference"')


def matrix_as_map(matrix: Tensor) -> Tensor:
    """A matrix ``(rows, columns)`` as a map of one image: a view."""
    return matrix[None, :, None, :]


def scales_of(x: Tensor, panels: int = 1) -> Tensor:
    """A power of two for every panel that brings the largest finite value of ``x`` just below float16's largest.

    float16 needs none: its scales are 1.
    """
    check_operand(x)
    if x.dtype == torch.float16:
        return x.new_ones(panels, dtype=torch.float32)
    found = halves_ops.partial_amax(gapless(x))
    scales = x.new_empty(panels, dtype=torch.float32)
    many = found.numel()
    launch(
        kernels.scale_kernel, 1, x, found, scales, many, panels, LARGEST=LARGEST_EXPONENT, BLOCK=next_power_of_2(many)
    )
    return scales


def to_ellpack(
    x: Tensor, scales: Tensor | None = None, window: Window = PIXEL, *, panel: int = PANEL,
    capacity: int | None = None, tile: Tile | None = None,
) -> EllpackDib:  # fmt: skip
    """The matrix that a convolution of ``x`` multiplies in ELLPACK-DIB, without that matrix; of the map itself under
    a window of one pixel.

    Args:
        x: ``(N, C, H, W)``.
        scales: of the panels; one for all of them is fitted, if left out.
        window: of the convolution.
        panel: rows of a panel.
        capacity: slots of a column; as many as a panel has rows, if left out, which needs no look at the data.
        tile: of a program; the sizes decide, if left out.
    """
    check_operand(x)
    rows, columns, _ = _sizes(x, window)
    panels = panels_of(rows, panel)
    capacity = min(panel, rows) if capacity is None else capacity
    words = x.new_empty((panels, capacity, columns), dtype=torch.int32)
    counts = x.new_empty((panels, columns), dtype=torch.int32)
    image = _row_of_pixels(x, window) if tile is None else None
    if image is None:
        scales = scales_of(x, panels) if scales is None else scales
        _convert(x, words, counts, scales, window, panel, tile)
    elif scales is None and x.dtype != torch.float16:
        scales = x.new_empty(panels, dtype=torch.float32)
        compiled.fit(image, words, counts, scales, panel)
    else:
        scales = x.new_ones(panels, dtype=torch.float32) if scales is None else scales
        compiled.convert(image, words, counts, scales.contiguous(), panel)
    return EllpackDib(words, counts, scales, rows, panel)


def count_nonzeros(x: Tensor, window: Window = PIXEL, *, panel: int = PANEL, tile: Tile | None = None) -> Tensor:
    """Non-zeros of each column of each panel, int32 ``(panels, columns)``: one pass that stores nothing else."""
    rows, columns, _ = _sizes(x, window)
    check_operand(x)
    counts = x.new_empty((panels_of(rows, panel), columns), dtype=torch.int32)
    image = _row_of_pixels(x, window) if tile is None else None
    if image is None:
        _convert(x, None, counts, None, window, panel, tile)
    else:
        compiled.convert(image, None, counts, counts.view(torch.float32), panel)
    return counts


def restore(sparse: EllpackDib, y: Tensor) -> Tensor:
    """Write the non-zeros of a map in ELLPACK-DIB into ``y (N, C, H, W)``, which holds zeros."""
    check_operand(y)
    image = _flattened(y)
    columns, wide = sparse.columns, clamp(1, next_power_of_2(sparse.columns), 128)
    pixels = y.shape[2] * y.shape[3]
    if image.shape[2] > 1:
        raise UnsupportedError(f"restore: expected pixels that are evenly apart, got strides {y.stride()}")
    if sparse.rows:
        launch(
            kernels.restore_kernel, -(-columns // wide) * sparse.words.shape[0], y,
            sparse.words, sparse.counts, sparse.scales, y, columns, sparse.panel, sparse.capacity, pixels,
            image.stride(0), image.stride(1), image.stride(3), BN=wide, UPCAST=INTERPRETED,
            INDEX=index_type(sparse.words, y),
        )  # fmt: skip
    return y


def nonzero_product(
    at: Tensor, bias: Tensor | None, sparse: EllpackDib, y: Tensor, sizes: tuple[int, int], window: Window = PIXEL,
    tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """Fill ``y (N, M, H', W')`` with the convolution of a map of ``sizes`` pixels in ELLPACK-DIB."""
    check_operand(y)
    outputs, pixels = y.shape[1], y.shape[2] * y.shape[3]
    columns = y.shape[0] * pixels
    if not sparse.rows:
        return y.copy_(torch.zeros_like(y) if bias is None else bias[:, None, None].expand_as(y))
    block = compiled.product_block(outputs, columns, at.itemsize)
    if tile is None and compiled.takes_product(sparse, y, block, at.itemsize):
        compiled.product(compiled.weights(at, at.dtype), bias, sparse, y, sizes, window, block)
        return y
    at, tile = at.contiguous(), tile or nonzero_tile(outputs, columns)
    launch(
        kernels.nonzero_kernel, -(-columns // tile.columns) * -(-outputs // tile.outputs), y,
        at, y if bias is None else bias.contiguous(), sparse.words, sparse.counts, sparse.scales, y, outputs, columns,
        sparse.rows, sparse.panel, sparse.words.shape[0], sparse.capacity, sparse.columns, pixels, y.shape[3], *sizes,
        y.stride(0), y.stride(1), y.stride(3),
        **window.switches(), BIAS=bias is not None, BM=tile.outputs, BN=tile.columns, UNROLL=tile.depth,
        UPCAST=INTERPRETED, INDEX=index_type(at, sparse.words, y), num_warps=tile.warps,
    )  # fmt: skip
    return y


class United(NamedTuple):
    """For each tile of columns the rows with a non-zero there, in order: int32 ``lists (tiles, rows)``, of which the
    first ``lengths (tiles,)`` are written; and for halves the largest magnitudes ``peaks (tiles, parts)``."""

    lists: Tensor
    lengths: Tensor
    peaks: Tensor


def united(x: Tensor, window: Window, width: int, halves: int = 0) -> United:
    """The rows that tiles of ``width`` columns have, for products in so many halves of ``x``."""
    check_operand(x)
    rows, columns, inside = _sizes(x, window)
    tiles, deep = -(-columns // width), max(1, min(next_power_of_2(rows), 4096 // width))
    parts = -(-rows // deep)
    flags = x.new_empty((tiles, rows), dtype=torch.int8)
    found = United(
        x.new_empty((tiles, rows), dtype=torch.int32),
        x.new_empty(tiles, dtype=torch.int32),
        x.new_empty((tiles, parts), dtype=torch.float32),
    )
    launch(
        kernels.flag_kernel, tiles * parts, x, x, flags, found.peaks, rows, columns, *_told(x, window),
        **window.switches(), INSIDE=inside, SINGLE=_single(x, window), X=halves, BK=deep, BN=width,
        INDEX=index_type(x, found.lists),
    )  # fmt: skip
    launch(
        kernels.list_kernel, tiles, x, flags, found.lists, found.lengths, rows, BK=min(next_power_of_2(rows), 1024),
        INDEX=index_type(found.lists),
    )  # fmt: skip
    return found


def union_product(
    at: Tensor, bias: Tensor | None, x: Tensor, y: Tensor, window: Window = PIXEL, tile: Tile | None = None,
    parts: tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """Fill ``y (N, M, H', W')`` with the convolution of ``x`` over the rows that are not zero.

    Those that each tile of columns has; where images are large enough, the channels that each image has. ``parts`` are
    the halves of float32 activations and of weights.
    """
    check_operand(y)
    if tile is None and living.takes(x, window) and y.numel():
        return living.product(at, bias, x, y, window, None, parts)
    rows, columns, inside = _sizes(x, window)
    outputs = y.shape[1]
    tile = tile or union_tile(outputs, columns)
    of_x, of_weights = parts or parts_for(x)
    (near_at, peaks), found = weights(at, of_weights), united(x, window, tile.columns, of_x)
    blocks = found.peaks.shape[1]
    launch(
        kernels.union_kernel, -(-columns // tile.columns) * -(-outputs // tile.outputs), y,
        near_at[0], near_at[-1], peaks, y if bias is None else bias.contiguous(), x, found.peaks, found.lists,
        found.lengths, y, outputs, columns, rows, max(x.shape[1], 1), blocks, *_told(x, window)[1:],
        y.stride(0), y.stride(1), y.stride(3),
        **window.switches(), INSIDE=inside, SINGLE=_single(x, window), BIAS=bias is not None, X=of_x,
        W=of_weights, PARTS=next_power_of_2(blocks), SHARES=peaks.numel(),
        BM=tile.outputs, BN=tile.columns, BK=tile.depth, GROUP=GROUP_SIZE_M, UPCAST=INTERPRETED,
        INDEX=index_type(near_at[0], x, found.lists, y), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def masked_product(at: Tensor, x: Tensor, dc: Tensor, tile: Tile | None = None) -> Tensor:
    """``at @ dc`` where ``x (rows, columns)`` is not zero, and zero elsewhere: the gradient of what a ReLU gave.

    ``at`` is ``(rows, M)``, ``dc (M, columns)`` of any strides.
    """
    check_operand(x)
    (rows, columns), outputs = x.shape, at.shape[1]
    tile = tile or union_tile(rows, columns)
    of_dc, of_weights = parts_for(dc)
    (near_at, peaks), found = weights(at, of_weights), united(matrix_as_map(x), PIXEL, tile.columns)
    dc_peaks = halves_ops.partial_amax(gapless(dc)) if of_dc else dc
    db = torch.zeros((rows, columns), dtype=dc.dtype, device=x.device)
    blocks = dc_peaks.numel()
    launch(
        kernels.masked_kernel, -(-columns // tile.columns) * -(-rows // tile.outputs), x,
        near_at[0], near_at[-1], peaks, x, found.lists, found.lengths, dc, dc_peaks, db, outputs, columns, rows, blocks,
        *x.stride(), *dc.stride(),
        X=of_dc, W=of_weights, PARTS=next_power_of_2(blocks), SHARES=peaks.numel(),
        BM=tile.depth, BN=tile.columns, BK=tile.outputs, UPCAST=INTERPRETED,
        INDEX=index_type(near_at[0], x, found.lists, dc), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return db


def product(at: Tensor, bias: Tensor | None, x: Tensor, window: Window, impl: str, stored: str = "same") -> Tensor:
    """The convolution of ``x`` by one of the kernels, in the layout of ``x``; ``union`` also takes ``at (taps, C, M)``.

    ``stored`` is the type in which ``nonzero`` reads weights.
    """
    y = _output(x, at.shape[-1], window)
    if impl != "nonzero":
        return union_product(at, bias, x, y, window, parts=parts_for(x, impl == "rounded"))
    at = compiled.weights(at, STORED.get(stored, at.dtype))[:, : at.shape[1]]
    panel = compiled.product_block(y.shape[1], y.numel() // max(y.shape[1], 1), at.itemsize).panel
    return nonzero_product(at, bias, to_ellpack(x, panel=panel), y, (x.shape[2], x.shape[3]), window)


def turned(weight: Tensor, stored: str = "same") -> Tensor:
    """A convolution's weight ``(M, C, KH, KW)`` as ``(taps * C, M)``, in one pass in the type that is stored."""
    by_tap = weight.permute(2, 3, 1, 0)
    at = by_tap.new_empty(by_tap.shape, dtype=STORED.get(stored, weight.dtype))
    return at.copy_(by_tap).flatten(0, 2)


def by_rows(weight: Tensor, impl: str, stored: str) -> Tensor:
    """A convolution's weight as an implementation reads it: ``(taps * C, M)``, or a view ``(taps, C, M)``."""
    return turned(weight, stored) if impl == "nonzero" else weight.flatten(2).permute(2, 1, 0)


@torch.library.custom_op("lamina::sparse_conv", mutates_args=())
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], forward: str, data: str, stored: str
) -> Tensor:
    """A convolution of ``x (N, C, H, W)`` by ``weight (M, C, KH, KW)``.

    Its forward pass and the gradient of ``x`` are each ``dense``, ``nonzero`` or ``union``; the gradient of the weight
    is the library's.
    """
    steps = Window(*window)
    if forward == "dense":
        return torch.convolution(x, weight, bias, *_dense_steps(steps))
    return product(by_rows(weight, forward, stored), bias, x, steps, forward, stored)


@torch.library.custom_op("lamina::sparse_linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, data: str, weights: str, stored: str
) -> Tensor:
    """``x W^T + b`` of ``x (rows, in)``, each phase of which is ``dense``, ``nonzero`` or ``union``."""
    if forward == "dense":
        return F.linear(x, weight, bias)
    return product(weight.mT, bias, x[..., None, None], PIXEL, forward, stored)[..., 0, 0]


@torch.library.custom_op("lamina::sparse_matmul", mutates_args=())
def matmul(a: Tensor, b: Tensor, impl: str, stored: str, masked: bool) -> Tensor:
    """``a (M, K) @ b (K, N)`` without the zeros of ``b``; ``masked``, its gradient is wanted only where it has none."""
    if impl == "dense":
        return a @ b
    return product(a.mT, None, matrix_as_map(b), PIXEL, impl, stored)[0, :, 0]


@matmul.register_fake
def _(a: Tensor, b: Tensor, impl: str, stored: str, masked: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@torch.library.custom_op("lamina::sparse_masked_matmul", mutates_args=())
def masked_matmul(at: Tensor, dc: Tensor, b: Tensor) -> Tensor:
    """``at (K, M) @ dc (M, N)`` where ``b (K, N)`` is not zero, and zero elsewhere."""
    return masked_product(at, b, dc)


@masked_matmul.register_fake
def _(at: Tensor, dc: Tensor, b: Tensor) -> Tensor:
    return dc.new_empty(b.shape)


def _matmul_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.impl, ctx.stored, ctx.masked = inputs
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx: Any, dc: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    da = matmul(dc, b.mT, ctx.impl, ctx.stored, False) if ctx.needs_input_grad[0] else None
    db = None
    if ctx.needs_input_grad[1]:
        db = masked_matmul(a.mT, dc, b) if ctx.masked else a.mT @ dc
    return da, db, None, None, None


matmul.register_autograd(_matmul_backward, setup_context=_matmul_setup)


@conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], forward: str, data: str, stored: str
) -> Tensor:
    if forward == "dense":
        return torch.convolution(x, weight, bias, *_dense_steps(Window(*window)))
    return _output(x, weight.shape[0], Window(*window))


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, forward: str, data: str, weights: str, stored: str) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.window, _, ctx.data, ctx.stored = inputs
    ctx.biased = None if bias is None else [bias.shape[0]]
    ctx.save_for_backward(x, weight)


def _conv_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    window = Window(*ctx.window)
    wanted = list(ctx.needs_input_grad[:3])
    dx = None
    if wanted[0] and ctx.data != "dense":
        dx = conv_data(dy, weight, list(x.shape), ctx.window, ctx.data, ctx.stored)
        wanted[0] = False
    wanted[2] = wanted[2] and ctx.biased is not None
    rest = [None, None, None]
    if any(wanted):
        rest = list(torch.ops.aten.convolution_backward(dy, x, weight, ctx.biased, *_dense_steps(window), wanted))
    return dx if dx is not None else rest[0], rest[1], rest[2], None, None, None, None


@torch.library.custom_op("lamina::sparse_conv_data", mutates_args=())
def conv_data(dy: Tensor, weight: Tensor, shape: list[int], window: list[int], impl: str, stored: str) -> Tensor:
    """The gradient of a convolution's input of ``shape``, its stride 1, without the zeros of ``dy``."""
    at = by_rows(weight.flip(2, 3).transpose(0, 1), impl, stored)
    return product(at, None, dy, Window(*window).transposed(), impl, stored)


@conv_data.register_fake
def _(dy: Tensor, weight: Tensor, shape: list[int], window: list[int], impl: str, stored: str) -> Tensor:
    return _output(dy, weight.shape[1], Window(*window).transposed())


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, ctx.data, ctx.weights, ctx.stored = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight)


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    # The first is x' W'^T with x' = dy and W' = W^T, the second with x' = x^T and W' = dy^T, transposed.
    dx = linear(dy, weight.mT, None, ctx.data, "dense", "dense", ctx.stored) if for_x else None
    dw = None
    if for_weight and ctx.weights == "dense":
        dw = dy.mT @ x
    elif for_weight:
        dw = linear(x.mT, dy.mT, None, ctx.weights, "dense", "dense", ctx.stored).mT
    db = dy.sum(0) if for_bias and ctx.biased else None
    return dx, dw, db, None, None, None, None


conv.register_autograd(_conv_backward, setup_context=_conv_setup)
linear.register_autograd(_linear_backward, setup_context=_linear_setup)


@register_flop_formula(torch.ops.lamina.sparse_matmul)
def _(a: torch.Size, b: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


@register_flop_formula(torch.ops.lamina.sparse_masked_matmul)
def _(at: torch.Size, dc: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * at[0] * at[1] * dc[1]


@register_flop_formula(torch.ops.lamina.sparse_conv)
def _(x: torch.Size, weight: torch.Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """As many as the dense layer's: how many are left out only the data tells."""
    operations: int = 2 * out_shape.numel() * weight[1:].numel()
    return operations


@register_flop_formula(torch.ops.lamina.sparse_conv_data)
def _(dy: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * dy.numel() * weight[1:].numel()


@register_flop_formula(torch.ops.lamina.sparse_linear)
def _(x: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * x[0] * weight[0] * weight[1]


def _convert(
    x: Tensor, words: Tensor | None, counts: Tensor, scales: Tensor | None, window: Window, panel: int,
    tile: Tile | None,
) -> None:  # fmt: skip
    check_operand(x)
    x = _flattened(x) if window.pixel else x
    rows, columns, inside = _sizes(x, window)
    panels, capacity = counts.shape[0], 0 if words is None else words.shape[1]
    tile = tile or convert_tile(min(panel, rows), columns, panels)
    launch(
        kernels.convert_kernel, -(-columns // tile.columns) * panels, x,
        x, counts if words is None else words, counts, counts if scales is None else scales, rows, columns, panel,
        capacity, *_told(x, window), **window.switches(), INSIDE=inside, SINGLE=_single(x, window),
        STORE=words is not None, BK=tile.depth, BN=tile.columns,
        INDEX=index_type(x, counts if words is None else words),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _image(x: Tensor, window: Window) -> tuple[int, int]:
    """Height and width of the output; a window of one pixel also takes maps of none."""
    height, width = x.shape[2:] if window.pixel else window.output(*x.shape[2:])
    return height, width


def _sizes(x: Tensor, window: Window) -> tuple[int, int, bool]:
    """Rows and columns of the map's matrix, and whether no tap is ever outside the image."""
    height, width = _image(x, window)
    inside = (window.padding_height, window.padding_width) == (0, 0)
    return window.taps * x.shape[1], x.shape[0] * height * width, inside


def _told(x: Tensor, window: Window) -> tuple[int, ...]:
    """What kernels are told of a map: channels, pixels and width of the output, sizes and strides."""
    height, width = _image(x, window)
    return max(x.shape[1], 1), height * width, width, x.shape[2], x.shape[3], *x.stride()


def _single(x: Tensor, window: Window) -> bool:
    """Whether a map is a matrix: one image of one row."""
    return window.pixel and x.shape[0] == 1 and x.shape[2] == 1


def _flattened(x: Tensor) -> Tensor:
    """The same map as one row of pixels, if its strides allow: neighbours are then known to be neighbours."""
    return x.flatten(2)[:, :, None] if x.stride(2) == x.shape[3] * x.stride(3) else x


def _row_of_pixels(x: Tensor, window: Window) -> Tensor | None:
    """The map as the compiled conversion takes it, or nothing."""
    image = _flattened(x)
    return image if window.pixel and compiled.takes(image) and image.shape[2] == 1 else None


def _output(x: Tensor, outputs: int, window: Window) -> Tensor:
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (x.shape[0], outputs, *_image(x, window))
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _dense_steps(window: Window) -> tuple[Any, ...]:
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    return [sh, sw], [ph, pw], [dh, dw], False, [0, 0], 1
