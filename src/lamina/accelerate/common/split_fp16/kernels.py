"""Split-fp16 emulation of float32 on tensor cores: amax, split, and convolutions of split operands.

A tensor is scaled by the power of two that brings its amax to `TARGET_EXPONENT`. The amax needs no second launch, no
synchronization and no order of operations: each program stores the amax of its part, and each consumer reduces these
partials, which are few.

Dimensions of convolutions: a *row* is one pixel of one example; ``G`` groups. Rows are ``[TERMS, rows, G*channels]``,
weights ``[TERMS, G*outputs, taps, inputs]``. With two terms per operand, three products are summed; the fourth, of both
low parts, is below float32 precision. Tensor cores truncate sums where float32 rounds them, and these errors add up:
only the products of one iteration are accumulated in them.

Common constexprs: ``PARTIALS``, the number of partial amaxes, 0 for unscaled tensors; ``KW`` to ``DW``, the geometry;
``UPCAST`` multiplies in float32 (the interpreter cannot multiply bf16); ``INDEX``, the dtype of offsets.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.split_fp16 import reference
from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded, window_origin, window_row
from lamina.spec import Cost

MAX_PARTIALS = 512
"""Most partial amaxes of a tensor; a power of two."""

TARGET_EXPONENT = reference.TARGET_EXPONENT
"""The amax is scaled to ``[2**12, 2**13)``: sums of eight such values fit float16, which ends below 2**16 and has full
precision from 2**-14 up."""


@triton.jit
@no_type_check
def finite_amax(x, numel, index, partials, sample_stride, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest finite magnitude of part ``index`` of ``partials`` of ``x [numel]``.

    One block in ``sample_stride`` is read.
    """
    largest = tl.zeros((BLOCK,), tl.float32)
    for first in range(index.to(INDEX) * sample_stride * BLOCK, numel, partials.to(INDEX) * sample_stride * BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        values = tl.abs(tl.load(x + offsets, offsets < numel, 0.0).to(tl.float32))
        largest = tl.maximum(largest, tl.where(values < float("inf"), values, 0.0))
    return tl.max(largest, 0)


@triton.jit
@no_type_check
def amax_kernel(x, out, numel, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """The largest finite magnitude of each part of ``x [numel]``, to ``out [programs]``."""
    tl.store(out + tl.program_id(0), finite_amax(x, numel, tl.program_id(0), tl.num_programs(0), 1, BLOCK, INDEX))


@triton.jit(do_not_specialize=("x_partials", "y_partials"))
@no_type_check
def pair_amax_kernel(
    x, y, out, overflow, x_numel, y_numel, x_partials, y_partials, SAMPLE_STRIDE: tl.constexpr, RETRY: tl.constexpr,
    BLOCK: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The largest finite magnitudes of the parts of ``x``, then of those of ``y``.

    Of ``x`` one block of ``SAMPLE_STRIDE`` is read, and ``overflow [1]`` is cleared. A ``RETRY`` reads all of ``x``,
    and only if ``overflow`` is set.
    """
    griddepcontrol(PDL)
    program = tl.program_id(0)
    active = True
    if RETRY:
        active = tl.load(overflow) > 0
    elif SAMPLE_STRIDE > 1:
        tl.store(overflow, 0, program == 0)
    if active:
        if program < x_partials:
            amax = finite_amax(x, x_numel, program, x_partials, SAMPLE_STRIDE, BLOCK, INDEX)
        else:
            amax = finite_amax(y, y_numel, program - x_partials, y_partials, 1, BLOCK, INDEX)
        tl.store(out + program, amax)


@triton.jit
@no_type_check
def load_scale(partial_amax, PARTIALS: tl.constexpr, TARGET_EXPONENT: tl.constexpr):
    """The power-of-two scale and its inverse from ``partial_amax [PARTIALS]``; 1 if no finite element is nonzero."""
    return scale_of(tl.load(partial_amax + tl.arange(0, PARTIALS)), TARGET_EXPONENT)


@triton.jit
@no_type_check
def scale_of(partial_amax, TARGET_EXPONENT: tl.constexpr):
    """`load_scale` for partials in registers, which may be loaded long before they are needed."""
    return power_of_two_scale(tl.max(partial_amax, 0), TARGET_EXPONENT)


@triton.jit
@no_type_check
def power_of_two_scale(amax, TARGET_EXPONENT: tl.constexpr):
    """Powers of two that bring each ``amax`` to ``2**TARGET_EXPONENT``, and their inverses; 1 for zero and infinity."""
    exponent = (amax.to(tl.int32, bitcast=True) >> 23) - 127
    exponent = tl.where((amax > 0) & (exponent < 128), exponent, TARGET_EXPONENT)
    shift = tl.minimum(tl.maximum(TARGET_EXPONENT - exponent, -126), 126)
    scale = ((127 + shift) << 23).to(tl.float32, bitcast=True)
    scale_inv = ((127 - shift) << 23).to(tl.float32, bitcast=True)
    return scale, scale_inv


@triton.jit
@no_type_check
def split_hi_lo(values):
    """float32 ``values`` rounded to float16, and the rounding errors of those that are finite."""
    hi = values.to(tl.float16)
    rounded_values = hi.to(tl.float32)
    finite = tl.abs(rounded_values) < float("inf")
    lo = tl.where(finite, values, 0.0) - tl.where(finite, rounded_values, 0.0)
    return hi, lo.to(tl.float16)


@triton.jit
@no_type_check
def split_fp16_kernel(
    x, partial_amax, out, length, channels, tiles_l, tiles_c, stride_n, stride_c, stride_l, term_stride,
    TERMS: tl.constexpr, PARTIALS: tl.constexpr, TARGET_EXPONENT: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """``x (N, C, L)`` of any strides to ``out [TERMS, N*L, C]``, with a stride of ``term_stride`` between terms."""
    c = tl.program_id(0) % tiles_c * BLOCK_C + tl.arange(0, BLOCK_C)
    image = tl.program_id(0) // (tiles_c * tiles_l)
    pixel = tl.program_id(0) // tiles_c % tiles_l * BLOCK_L + tl.arange(0, BLOCK_L)
    mask = (pixel < length)[:, None] & (c < channels)[None, :]
    pointers = pixel.to(INDEX)[:, None] * stride_l + c.to(INDEX)[None, :] * stride_c
    values = tl.load(x + image.to(INDEX) * stride_n + pointers, mask, 0.0)
    pointers = (image.to(INDEX) * length + pixel)[:, None] * channels + c[None, :]
    if PARTIALS:
        hi, lo = split_hi_lo(values.to(tl.float32) * load_scale(partial_amax, PARTIALS, TARGET_EXPONENT)[0])
        tl.store(out + pointers, hi, mask)
        if TERMS == 2:
            tl.store(out + term_stride + pointers, lo, mask)
    else:
        tl.store(out + pointers, values, mask)


def split_cost(numel: int, terms: int, io_bytes: int) -> Cost:
    """A read of the tensor and a write of its terms."""
    return Cost(0, numel * io_bytes, numel * terms * 2)


@triton.jit
@no_type_check
def store_rows(
    acc, pointers, c, row_mask, channels: tl.constexpr, stride_c, UPCAST: tl.constexpr, INDEX: tl.constexpr
):  # fmt: skip
    """Store values to the rows at ``pointers``, to their channels ``c``."""
    stored = rounded(acc, pointers.dtype.element_ty, UPCAST)
    tl.store(pointers[:, None] + (c.to(INDEX) * stride_c)[None, :], stored, row_mask[:, None] & (c < channels)[None, :])


@triton.jit
@no_type_check
def conv_kernel(
    a, w, bias, a_amax, w_amax, out, rows, tiles_m, height, width, a_height, a_width, per_height, per_width,
    a_term_stride, w_term_stride, stride_n, stride_c, stride_l,
    IN_CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BACKWARD_DATA: tl.constexpr, TERMS: tl.constexpr, A_PARTIALS: tl.constexpr, W_PARTIALS: tl.constexpr,
    TARGET_EXPONENT: tl.constexpr, BIAS: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """A convolution ``a [TERMS, rows_a, G*IN_CHANNELS]`` to ``out (N, G*OUT_CHANNELS, L)`` of any strides.

    With ``BACKWARD_DATA``, its transpose. Rows of ``out`` are pixels of images of ``height`` by ``width``.
    """
    TILES_N: tl.constexpr = (OUT_CHANNELS + BLOCK_N - 1) // BLOCK_N
    ITERATIONS_PER_TAP: tl.constexpr = (IN_CHANNELS + BLOCK_K - 1) // BLOCK_K
    DIVISIBLE: tl.constexpr = IN_CHANNELS % BLOCK_K == 0 and OUT_CHANNELS % BLOCK_N == 0
    group = tl.program_id(0) // (tiles_m * TILES_N)
    row = tl.program_id(0) // TILES_N % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    image, top, start = window_origin(row, height, width, per_height, per_width, SH, SW, PH, PW, BACKWARD_DATA)
    k = tl.arange(0, BLOCK_K)
    if BACKWARD_DATA:
        weights = w + (group * IN_CHANNELS * TAPS * OUT_CHANNELS + k[:, None] * TAPS * OUT_CHANNELS + n[None, :])
    else:
        weights = w + (group * OUT_CHANNELS * TAPS * IN_CHANNELS + n[None, :] * TAPS * IN_CHANNELS + k[:, None])
    if A_PARTIALS:
        a_partials = tl.load(a_amax + tl.arange(0, A_PARTIALS))
        w_partials = tl.load(w_amax + tl.arange(0, W_PARTIALS))
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for iteration in range(TAPS * ITERATIONS_PER_TAP):
        tap = iteration // ITERATIONS_PER_TAP
        k0 = iteration % ITERATIONS_PER_TAP * BLOCK_K
        source, row_mask = window_row(image, top, start, tap, a_height, a_width, KW, SH, SW, DH, DW, BACKWARD_DATA)
        row_mask &= row < rows
        pointers = a + ((source.to(INDEX) * (GROUPS * IN_CHANNELS) + group * IN_CHANNELS)[:, None] + (k0 + k)[None, :])
        if BACKWARD_DATA:
            w_pointers = weights + (k0 * TAPS + tap) * OUT_CHANNELS
        else:
            w_pointers = weights + (tap * IN_CHANNELS + k0)
        if DIVISIBLE:
            mask = row_mask[:, None]
            a_hi = tl.load(pointers, mask, 0.0)
            w_hi = tl.load(w_pointers)
        else:
            mask = row_mask[:, None] & (k0 + k < IN_CHANNELS)[None, :]
            w_mask = (k0 + k < IN_CHANNELS)[:, None] & (n < OUT_CHANNELS)[None, :]
            a_hi = tl.load(pointers, mask, 0.0)
            w_hi = tl.load(w_pointers, w_mask, 0.0)
        if UPCAST:
            a_hi, w_hi = a_hi.to(tl.float32), w_hi.to(tl.float32)
        if TERMS == 2:
            a_lo = tl.load(pointers + a_term_stride, mask, 0.0)
            if DIVISIBLE:
                w_lo = tl.load(w_pointers + w_term_stride)
            else:
                w_lo = tl.load(w_pointers + w_term_stride, w_mask, 0.0)
            if UPCAST:
                a_lo, w_lo = a_lo.to(tl.float32), w_lo.to(tl.float32)
            small = tl.dot(a_hi, w_lo, tl.dot(a_lo, w_hi))
            acc += tl.dot(a_hi, w_hi, small)
        else:
            acc = tl.dot(a_hi, w_hi, acc)
    if A_PARTIALS:
        acc = acc * scale_of(a_partials, TARGET_EXPONENT)[1] * scale_of(w_partials, TARGET_EXPONENT)[1]
    if BIAS:
        acc += tl.load(bias + group * OUT_CHANNELS + n, n < OUT_CHANNELS, 0.0).to(tl.float32)[None, :]
    # At image boundaries within 16 rows, the strides prevent vectorized stores, so the hint stays correct.
    pixel = tl.max_contiguous(row - image * (height * width), 16)
    channel_offset = (group * OUT_CHANNELS).to(INDEX) * stride_c
    pointers = out + (image.to(INDEX) * stride_n + pixel.to(INDEX) * stride_l + channel_offset)
    if CHANNELS_LAST:
        store_rows(acc, pointers, n, row < rows, OUT_CHANNELS, stride_c, UPCAST, INDEX)
    else:  # half of the columns at a time, since each element needs a pointer in registers
        c = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N // 2)
        first, second = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        store_rows(first, pointers, c, row < rows, OUT_CHANNELS, stride_c, UPCAST, INDEX)
        store_rows(second, pointers, c + BLOCK_N // 2, row < rows, OUT_CHANNELS, stride_c, UPCAST, INDEX)


@triton.jit
@no_type_check
def conv_backward_weight_kernel(
    dy, a, dy_amax, a_amax, out, rows, rows_per_split, height, width, a_height, a_width, per_height, per_width,
    dy_term_stride, a_term_stride,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    TERMS: tl.constexpr, DY_PARTIALS: tl.constexpr, A_PARTIALS: tl.constexpr, TARGET_EXPONENT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """The weight gradient of one split of the rows, to ``out [split_k, G*OUTPUTS, TAPS, INPUTS]``.

    ``dy [TERMS, rows, G*OUTPUTS]`` has pixels of ``height`` by ``width``, ``a [TERMS, rows_a, G*INPUTS]`` is the input.
    """
    TILES_M: tl.constexpr = (OUTPUTS + BLOCK_M - 1) // BLOCK_M
    TILES_N: tl.constexpr = (TAPS * INPUTS + BLOCK_N - 1) // BLOCK_N
    DIVISIBLE: tl.constexpr = INPUTS % BLOCK_N == 0
    m = tl.program_id(0) // TILES_N % TILES_M * BLOCK_M + tl.arange(0, BLOCK_M)
    group = tl.program_id(0) // (TILES_N * TILES_M) % GROUPS
    split = tl.program_id(0) // (TILES_N * TILES_M * GROUPS)
    n = tl.program_id(0) % TILES_N * BLOCK_N + tl.arange(0, BLOCK_N)
    if DIVISIBLE:
        tap = tl.program_id(0) % TILES_N * BLOCK_N // INPUTS
    else:
        tap = (n // INPUTS)[None, :]
    first = split * rows_per_split
    last = tl.minimum(first + rows_per_split, rows)
    if A_PARTIALS:
        dy_partials = tl.load(dy_amax + tl.arange(0, DY_PARTIALS))
        a_partials = tl.load(a_amax + tl.arange(0, A_PARTIALS))
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for r0 in range(first, last, BLOCK_K):
        row = r0 + tl.arange(0, BLOCK_K)
        image, y, x = window_origin(row, height, width, per_height, per_width, SH, SW, PH, PW, False)
        source, a_mask = window_row(
            image[:, None], y[:, None], x[:, None], tap, a_height, a_width, KW, SH, SW, DH, DW, False
        )
        a_mask &= (row < last)[:, None]
        if not DIVISIBLE:
            a_mask &= (n < TAPS * INPUTS)[None, :]
        a_pointers = a + (source.to(INDEX) * (GROUPS * INPUTS) + group * INPUTS + (n % INPUTS)[None, :])
        dy_pointers = dy + (row.to(INDEX) * (GROUPS * OUTPUTS) + group * OUTPUTS)[:, None] + m[None, :]
        mask = (row < last)[:, None] & (m < OUTPUTS)[None, :]
        dy_hi = tl.load(dy_pointers, mask, 0.0)
        a_hi = tl.load(a_pointers, a_mask, 0.0)
        if UPCAST:
            dy_hi, a_hi = dy_hi.to(tl.float32), a_hi.to(tl.float32)
        if TERMS == 2:
            dy_lo = tl.load(dy_pointers + dy_term_stride, mask, 0.0)
            a_lo = tl.load(a_pointers + a_term_stride, a_mask, 0.0)
            if UPCAST:
                dy_lo, a_lo = dy_lo.to(tl.float32), a_lo.to(tl.float32)
            small = tl.dot(tl.trans(dy_hi), a_lo, tl.dot(tl.trans(dy_lo), a_hi))
            acc += tl.dot(tl.trans(dy_hi), a_hi, small)
        else:
            acc = tl.dot(tl.trans(dy_hi), a_hi, acc)
    if A_PARTIALS:
        acc = acc * scale_of(dy_partials, TARGET_EXPONENT)[1] * scale_of(a_partials, TARGET_EXPONENT)[1]
    offsets = ((split * GROUPS + group) * OUTPUTS + m)[:, None].to(INDEX) * (TAPS * INPUTS) + n[None, :]
    tl.store(out + offsets, acc, (m < OUTPUTS)[:, None] & (n < TAPS * INPUTS)[None, :])


def conv_cost(rows: int, outputs: int, inputs: int, taps: int, terms: int) -> Cost:
    """The cost of one phase of a convolution of ``rows`` output pixels: split operands read, output written."""
    matmuls = {1: 1, 2: 3}[terms]
    return Cost(
        2 * matmuls * rows * outputs * inputs * taps,
        2 * terms * (rows * inputs + outputs * inputs * taps),
        4 * rows * outputs,
    )
