"""The load of an im2col tile, common to the kernels of `ellpack` and `row_union`.

A map ``x`` of any strides is read as its im2col matrix: row ``tap * channels + channel``, column
``image * pixels + pixel`` of the output. A matrix is a map with a 1x1 window. Each program owns its columns: there are
no atomics, and results are deterministic.

Constexprs that all kernels share: ``KH`` to ``DW``, the window; ``UNPADDED``, all taps are inside the image;
``IS_MATRIX``, the map is a matrix of one row of pixels; ``UPCAST`` computes 16-bit types in float32 (the interpreter
cannot multiply bf16); ``INDEX``, the integer type of offsets.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def im2col_tile(
    x, row, column, rows, columns, channels, pixels, out_width, height, width, x_n, x_c, x_h, x_w,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, UNPADDED: tl.constexpr, IS_MATRIX: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The elements of the im2col matrix at ``row`` and ``column``, zero outside it."""
    if IS_MATRIX:  # adjacent columns are adjacent in memory, which vectorizes the load
        offset = (row.to(INDEX) * x_c)[:, None] + (column.to(INDEX) * x_w)[None, :]
        return tl.load(x + offset, (row < rows)[:, None] & (column < columns)[None, :], 0.0)
    image = column // pixels
    top = column % pixels // out_width * SH - PH
    left = column % pixels % out_width * SW - PW
    base = image.to(INDEX) * x_n + top.to(INDEX) * x_h + left.to(INDEX) * x_w
    tap = row // channels
    down = tap // KW * DH
    right = tap % KW * DW
    offset = (row % channels).to(INDEX) * x_c + down.to(INDEX) * x_h + right.to(INDEX) * x_w
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    if not UNPADDED:
        h = top[None, :] + down[:, None]
        v = left[None, :] + right[:, None]
        mask = mask & (h >= 0) & (h < height) & (v >= 0) & (v < width)
    return tl.load(x + (offset[:, None] + base[None, :]), mask, 0.0)
