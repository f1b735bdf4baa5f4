"""The spectral matmul on tensor cores, one complex matmul per frequency, and its gradients.

Names, layouts and constexprs are those of `spectral.kernels`. ``TAP_WIDTH`` is the number of contiguous elements of one
tap in a tile that covers several taps; 0 if the taps and their elements form one flat dimension.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded, window_origin, window_row
from lamina.spec import Cost


@triton.jit
@no_type_check
def dot_terms(
    acc, a, a_lo, b, b_lo, TERMS: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``acc + a @ b``; with two ``TERMS``, three products, without that of the two low parts."""
    if UPCAST:
        a, a_lo, b, b_lo = a.to(acc.dtype), a_lo.to(acc.dtype), b.to(acc.dtype), b_lo.to(acc.dtype)
    if TERMS == 2:  # accumulated outside the tensor cores, which truncate sums where float32 rounds them
        step = tl.dot(a_lo, b, out_dtype=acc.dtype)
        step = tl.dot(a, b_lo, step, out_dtype=acc.dtype)
        return acc + tl.dot(a, b, step, out_dtype=acc.dtype)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


@triton.jit
@no_type_check
def split_complex(acc, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TAP_WIDTH: tl.constexpr, OFFSET: tl.constexpr):
    """The real and imaginary parts of ``acc``, which has ``2 * TAP_WIDTH`` columns per tap.

    The imaginary part of a column is ``OFFSET`` columns after its real part.
    """
    if OFFSET == TAP_WIDTH:
        parts = tl.reshape(acc, (BLOCK_M, BLOCK_N // TAP_WIDTH, 2, TAP_WIDTH))
        real, imaginary = tl.split(tl.permute(parts, (0, 1, 3, 2)))
        return tl.reshape(real, (BLOCK_M, BLOCK_N)), tl.reshape(imaginary, (BLOCK_M, BLOCK_N))
    n = tl.arange(0, BLOCK_N)
    real_columns = tl.broadcast_to((n // TAP_WIDTH * 2 * TAP_WIDTH + n % TAP_WIDTH)[None, :], (BLOCK_M, BLOCK_N))
    return tl.gather(acc, real_columns, 1), tl.gather(acc, real_columns + OFFSET, 1)


@triton.jit
@no_type_check
def spectral_matmul_tile(
    tile, slot, group, a, w, out, slot_rows, rows, slots, height, width, out_height, out_width, per_height, per_width,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr, BACKWARD_DATA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAP_WIDTH: tl.constexpr,
    OUTPUT_SCALE: tl.constexpr, TERMS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """One frequency of the matmul: rows times weights, summed over taps and blocks, times ``OUTPUT_SCALE``.

    In the forward pass, ``a`` are inputs and the sum is over ``q``. With ``BACKWARD_DATA``, ``a`` are output gradients,
    the weights are conjugated without a transposed copy, and the sum is over ``p``. A complex matmul is one real matmul
    with a K dimension twice as long: taps, then real and imaginary parts, then blocks, in the order of a row in memory.
    The weight for real/imaginary index ``c`` of the input and ``d`` of the output is its part ``c xor d``, negated for
    one of the four combinations. Slot 0 is two real matmuls.
    """
    IN_BLOCKS: tl.constexpr = P if BACKWARD_DATA else Q
    OUT_BLOCKS: tl.constexpr = Q if BACKWARD_DATA else P
    FLAT: tl.constexpr = TAP_WIDTH == 0
    TAPS_PER_TILE: tl.constexpr = 1 if FLAT else BLOCK_K // TAP_WIDTH
    SLICES_PER_TAP: tl.constexpr = 1 if FLAT else (2 * IN_BLOCKS + TAP_WIDTH - 1) // TAP_WIDTH
    ITERATIONS: tl.constexpr = (
        (TAPS * 2 * IN_BLOCKS + BLOCK_K - 1) // BLOCK_K
        if FLAT
        else (TAPS + TAPS_PER_TILE - 1) // TAPS_PER_TILE * SLICES_PER_TAP
    )
    tiles_n = tl.cdiv(OUT_BLOCKS, BLOCK_N)
    row = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, 2 * BLOCK_N)
    column = tile % tiles_n * BLOCK_N + n % BLOCK_N
    out_part = n // BLOCK_N
    weights = w + (slot.to(INDEX) * GROUPS + group) * P * TAPS * 2 * Q
    inputs = a + slot.to(INDEX) * slot_rows * 2 * GROUPS * IN_BLOCKS + group * IN_BLOCKS
    a_term_stride = tl.cast(slots, INDEX) * slot_rows * 2 * GROUPS * IN_BLOCKS
    w_term_stride = tl.cast(slots, INDEX) * GROUPS * P * TAPS * 2 * Q
    acc = tl.zeros((BLOCK_M, 2 * BLOCK_N), ACC)
    if not POINTWISE:
        if BACKWARD_DATA:
            image, top, left = window_origin(row, height, width, per_height, per_width, SH, SW, PH, PW, True)
            source_height, source_width = out_height, out_width
        else:
            image, top, left = window_origin(row, out_height, out_width, per_height, per_width, SH, SW, PH, PW, False)
            source_height, source_width = height, width
    for iteration in range(ITERATIONS):
        s = tl.arange(0, BLOCK_K)
        if FLAT:
            s += iteration * BLOCK_K
            tap = s * 0 if POINTWISE else s // (2 * IN_BLOCKS)
            inner = s if POINTWISE else s % (2 * IN_BLOCKS)
        else:
            tap = iteration // SLICES_PER_TAP * TAPS_PER_TILE + s // TAP_WIDTH
            inner = iteration % SLICES_PER_TAP * TAP_WIDTH + s % TAP_WIDTH
        part = inner // IN_BLOCKS
        block = inner % IN_BLOCKS
        same_part = part[:, None] == out_part[None, :]
        w_part = tl.where(slot == 0, out_part[None, :], tl.where(same_part, 0, 1))
        if BACKWARD_DATA:
            w_offsets = (block * TAPS + tap)[:, None] * 2 * Q + w_part * Q + column[None, :]
            negated = (part[:, None] == 0) & (out_part[None, :] == 1)
        else:
            w_offsets = column[None, :] * TAPS * 2 * Q + w_part * Q + (tap * 2 * Q + block)[:, None]
            negated = (part[:, None] == 1) & (out_part[None, :] == 0)
        k_mask = (tap < TAPS) & (inner < 2 * IN_BLOCKS)
        w_mask = k_mask[:, None] & (column < OUT_BLOCKS)[None, :] & (same_part | (slot > 0))
        w_hi = tl.load(weights + w_offsets, w_mask, 0.0)  # first, so that its latency overlaps that of the rows
        w_lo = tl.load(weights + w_term_stride + w_offsets, w_mask, 0.0) if TERMS == 2 else w_hi
        if FLAT:
            source = row[:, None]
            a_mask = (row < rows)[:, None] & (s < TAPS * 2 * IN_BLOCKS)[None, :]
            if not POINTWISE:
                source, in_image = window_row(
                    image[:, None], top[:, None], left[:, None], tap[None, :], source_height, source_width,
                    KW, SH, SW, DH, DW, BACKWARD_DATA,
                )  # fmt: skip
                a_mask &= in_image
            # With one group, real and imaginary parts are adjacent: this form lets the compiler vectorize the loads.
            offset = inner if GROUPS == 1 else inner // IN_BLOCKS * GROUPS * IN_BLOCKS + inner % IN_BLOCKS
            a_pointers = inputs + source.to(INDEX) * 2 * GROUPS * IN_BLOCKS + offset[None, :]
            a_hi = tl.load(a_pointers, a_mask, 0.0)
            a_lo = tl.load(a_pointers + a_term_stride, a_mask, 0.0) if TERMS == 2 else a_hi
        else:
            # The source row is computed once per row and tap, not once per element.
            taps = iteration // SLICES_PER_TAP * TAPS_PER_TILE + tl.arange(0, TAPS_PER_TILE)
            source, a_mask = window_row(
                image[:, None], top[:, None], left[:, None], taps[None, :], source_height, source_width,
                KW, SH, SW, DH, DW, BACKWARD_DATA,
            )  # fmt: skip
            a_mask &= (row < rows)[:, None] & (taps < TAPS)[None, :]
            inner = iteration % SLICES_PER_TAP * TAP_WIDTH + tl.arange(0, TAP_WIDTH)
            offset = inner if GROUPS == 1 else inner // IN_BLOCKS * GROUPS * IN_BLOCKS + inner % IN_BLOCKS
            a_pointers = (inputs + source.to(INDEX) * 2 * GROUPS * IN_BLOCKS)[:, :, None] + offset[None, None, :]
            mask = a_mask[:, :, None] & (inner < 2 * IN_BLOCKS)[None, None, :]
            a_hi = tl.reshape(tl.load(a_pointers, mask, 0.0), (BLOCK_M, BLOCK_K))
            if TERMS == 2:
                a_lo = tl.reshape(tl.load(a_pointers + a_term_stride, mask, 0.0), (BLOCK_M, BLOCK_K))
            else:
                a_lo = a_hi
        if UPCAST:
            w_hi, w_lo = w_hi.to(ACC), w_lo.to(ACC)
        w_hi, w_lo = tl.where(negated, -w_hi, w_hi), tl.where(negated, -w_lo, w_lo)
        acc = dot_terms(acc, a_hi, a_lo, w_hi, w_lo, TERMS, PRECISION, UPCAST)
    target = out + slot.to(INDEX) * rows * 2 * GROUPS * OUT_BLOCKS + group * OUT_BLOCKS
    target += row.to(INDEX)[:, None] * 2 * GROUPS * OUT_BLOCKS + (out_part * GROUPS * OUT_BLOCKS + column)[None, :]
    mask = (row < rows)[:, None] & (column < OUT_BLOCKS)[None, :]
    tl.store(target, rounded(acc * OUTPUT_SCALE, out.dtype.element_ty, UPCAST), mask)


@triton.jit
@no_type_check
def spectral_matmul_weight_tile(
    tile, slot, group, dy, x, out, rows_out, rows_in, slots, height, width, out_height, out_width,
    per_height, per_width, split_k,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAP_WIDTH: tl.constexpr, TERMS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """One frequency of the weight gradient: output gradients times conjugate inputs, summed over the rows of a split.

    A real matmul. Its columns are taps, ``2 * TAP_WIDTH`` columns each, then the real and imaginary parts of the
    inputs, then blocks, in memory order. Its rows are the real and imaginary parts of the output gradients, in two
    tiles, or ``STACKED`` in one where a tile of one part would be too small for tensor cores. The split-K partials
    ``out [split_k, F, G*P*taps, 2, Q]`` are reduced afterwards, in a fixed order.
    """
    STACKED: tl.constexpr = BLOCK_M < 16
    TAPS_PER_TILE: tl.constexpr = BLOCK_N // TAP_WIDTH
    SLICES_PER_TAP: tl.constexpr = (Q + TAP_WIDTH - 1) // TAP_WIDTH
    tiles_n: tl.constexpr = (TAPS + TAPS_PER_TILE - 1) // TAPS_PER_TILE * SLICES_PER_TAP
    tiles_m = tl.cdiv(P, BLOCK_M)
    start = tile // tiles_n % tiles_m * BLOCK_M
    split = tile // (tiles_n * tiles_m)
    first = tile % tiles_n // SLICES_PER_TAP * TAPS_PER_TILE
    slice_start = tile % SLICES_PER_TAP * TAP_WIDTH
    rows_per_split = tl.cdiv(tl.cdiv(rows_out, BLOCK_K), split_k) * BLOCK_K
    last = tl.minimum((split + 1) * rows_per_split, rows_out)
    m = tl.arange(0, 2 * BLOCK_M if STACKED else BLOCK_M)
    i = start + m % BLOCK_M
    gradients = dy + slot.to(INDEX) * rows_out * 2 * GROUPS * P + group * P
    gradients += (m if BLOCK_M == P and GROUPS == 1 else m // BLOCK_M * GROUPS * P + i)[:, None]
    n = tl.arange(0, 2 * BLOCK_N)
    tap = first + n // (2 * TAP_WIDTH)
    inner = n % (2 * TAP_WIDTH)
    if SLICES_PER_TAP == 1:
        column_mask = (tap < TAPS) & (inner < 2 * Q)
        # With one group, real and imaginary parts are adjacent: this form lets the compiler vectorize the loads.
        offset = inner if GROUPS == 1 else inner // Q * GROUPS * Q + inner % Q
    else:
        column_mask = (tap < TAPS) & (slice_start + inner % TAP_WIDTH < Q)
        offset = inner // TAP_WIDTH * GROUPS * Q + slice_start + inner % TAP_WIDTH
    inputs = x + slot.to(INDEX) * rows_in * 2 * GROUPS * Q + group * Q + offset[None, :]
    dy_term_stride = tl.cast(slots, INDEX) * rows_out * 2 * GROUPS * P
    x_term_stride = tl.cast(slots, INDEX) * rows_in * 2 * GROUPS * Q
    acc = tl.zeros((2 * BLOCK_M if STACKED else BLOCK_M, 2 * BLOCK_N), ACC)
    imag_acc = tl.zeros((BLOCK_M, 2 * BLOCK_N), ACC)
    for r0 in range(split * rows_per_split, last, BLOCK_K):
        row = r0 + tl.arange(0, BLOCK_K)
        mask = (i < P)[:, None] & (row < last)[None, :]
        dy_pointers = gradients + row.to(INDEX)[None, :] * 2 * GROUPS * P
        dy_hi = tl.load(dy_pointers, mask, 0.0)
        dy_lo = tl.load(dy_pointers + dy_term_stride, mask, 0.0) if TERMS == 2 else dy_hi
        if not STACKED:
            dy_imag_hi = tl.load(dy_pointers + GROUPS * P, mask, 0.0)
            dy_imag_lo = tl.load(dy_pointers + dy_term_stride + GROUPS * P, mask, 0.0) if TERMS == 2 else dy_imag_hi
        source = row[:, None]
        x_mask = (row < last)[:, None] & column_mask[None, :]
        if not POINTWISE:
            image, top, left = window_origin(row, out_height, out_width, per_height, per_width, SH, SW, PH, PW, False)
            source, in_image = window_row(
                image[:, None], top[:, None], left[:, None], tap[None, :], height, width,
                KW, SH, SW, DH, DW, False,
            )  # fmt: skip
            x_mask &= in_image
        x_pointers = inputs + source.to(INDEX) * 2 * GROUPS * Q
        x_hi = tl.load(x_pointers, x_mask, 0.0)
        x_lo = tl.load(x_pointers + x_term_stride, x_mask, 0.0) if TERMS == 2 else x_hi
        acc = dot_terms(acc, dy_hi, dy_lo, x_hi, x_lo, TERMS, PRECISION, UPCAST)
        if not STACKED:
            imag_acc = dot_terms(imag_acc, dy_imag_hi, dy_imag_lo, x_hi, x_lo, TERMS, PRECISION, UPCAST)
    if STACKED:
        acc, imag_acc = tl.split(tl.permute(tl.reshape(acc, (2, BLOCK_M, 2 * BLOCK_N)), (1, 2, 0)))
    rr, ri = split_complex(acc, BLOCK_M, BLOCK_N, TAP_WIDTH, Q if SLICES_PER_TAP == 1 else TAP_WIDTH)
    ir, ii = split_complex(imag_acc, BLOCK_M, BLOCK_N, TAP_WIDTH, Q if SLICES_PER_TAP == 1 else TAP_WIDTH)
    real, imaginary = tl.where(slot == 0, rr, rr + ii), tl.where(slot == 0, ii, ir - ri)  # slot 0: two real matmuls
    i = start + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    tap = first + n // TAP_WIDTH
    block = slice_start + n % TAP_WIDTH
    offset = ((split.to(INDEX) * slots + slot) * GROUPS + group) * P * TAPS * 2 * Q
    offset += (i[:, None] * TAPS + tap[None, :]) * 2 * Q + block[None, :]
    mask = (i < P)[:, None] & ((tap < TAPS) & (block < Q))[None, :]
    tl.store(out + offset, rounded(real, out.dtype.element_ty, UPCAST), mask)
    tl.store(out + offset + Q, rounded(imaginary, out.dtype.element_ty, UPCAST), mask)


@triton.jit(do_not_specialize=("per_height", "per_width"))
@no_type_check
def spectral_matmul_kernel(
    a, w, out, slot_rows, rows, tiles, slots, height, width, out_height, out_width, per_height, per_width,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr,
    TAPS: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr, BACKWARD_DATA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAP_WIDTH: tl.constexpr,
    OUTPUT_SCALE: tl.constexpr, TERMS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The spectral matmul of all frequencies, or with ``BACKWARD_DATA`` the input gradient."""
    griddepcontrol(PDL)
    matrix = tl.program_id(0) // tiles
    spectral_matmul_tile(
        tl.program_id(0) % tiles, matrix // GROUPS, matrix % GROUPS, a, w, out, slot_rows, rows, slots,
        height, width, out_height, out_width, per_height, per_width,
        P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE, BACKWARD_DATA,
        BLOCK_M, BLOCK_N, BLOCK_K, TAP_WIDTH, OUTPUT_SCALE, TERMS, ACC, PRECISION, UPCAST, INDEX,
    )  # fmt: skip


@triton.jit(do_not_specialize=("per_height", "per_width", "per_out_height", "per_out_width"))
@no_type_check
def spectral_matmul_backward_kernel(
    dy, x, w, dx, dw, rows_in, rows_out, data_tiles, tiles, slots,
    height, width, out_height, out_width, per_height, per_width, per_out_height, per_out_width, split_k,
    P: tl.constexpr, Q: tl.constexpr, GROUPS: tl.constexpr,
    TAPS: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, POINTWISE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TAP_WIDTH: tl.constexpr,
    W_BLOCK_M: tl.constexpr, W_BLOCK_N: tl.constexpr, W_BLOCK_K: tl.constexpr, W_TAP_WIDTH: tl.constexpr,
    OUTPUT_SCALE: tl.constexpr, TERMS: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    W_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Both gradients of all frequencies in one launch; without data tiles, the weight gradient alone."""
    griddepcontrol(PDL)
    matrix = tl.program_id(0) // tiles
    slot = matrix // GROUPS
    tile = tl.program_id(0) % tiles
    if tile < data_tiles:
        spectral_matmul_tile(
            tile, slot, matrix % GROUPS, dy, w, dx, rows_out, rows_in, slots,
            height, width, out_height, out_width, per_height, per_width,
            P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE, True,
            BLOCK_M, BLOCK_N, BLOCK_K, TAP_WIDTH, OUTPUT_SCALE, TERMS, ACC, PRECISION, UPCAST, INDEX,
        )  # fmt: skip
    else:
        spectral_matmul_weight_tile(
            tile - data_tiles, slot, matrix % GROUPS, dy, x, dw, rows_out, rows_in, slots,
            height, width, out_height, out_width, per_out_height, per_out_width, split_k,
            P, Q, GROUPS, TAPS, KW, SH, SW, PH, PW, DH, DW, POINTWISE,
            W_BLOCK_M, W_BLOCK_N, W_BLOCK_K, W_TAP_WIDTH, TERMS, ACC, W_PRECISION, UPCAST, INDEX,
        )  # fmt: skip


def spectral_matmul_cost(window: Conv2dProblem, p: int, q: int, slots: int, spectral_bytes: int) -> Cost:
    """The cost of the spectral matmul or one of its gradients: four real multiply-adds per complex multiply-add."""
    x, y = window.rows_in * window.groups * q, window.rows_out * window.groups * p
    w = window.groups * p * q * window.taps
    return Cost(8 * slots * window.rows_out * w, 2 * slots * (x + w) * spectral_bytes, 2 * slots * y * spectral_bytes)
