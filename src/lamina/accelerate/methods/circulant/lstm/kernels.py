"""One step of the recurrence between two products of spectra: transform back, the cell, transform.

Letters, layouts and switches are those of the transforms. A *cell* is one number of a hidden state; its four gates are
the input, forget, cell and output gate. Of hidden states of ``Q`` blocks, gates are ``[..., 4, Q * K]`` and their
spectra ``[F, rows, 2, 4 * Q]``. States and gates of all steps lie one step behind the other, ``rows`` split_gates: ``t`` is
the step's number, and no kernel is compiled for one of its own.

What an earlier kernel than the one in front wrote is read before waiting: that one has waited for it.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.methods.circulant.spectral.kernels import dft_cost, load_basis, multiply_basis, round_to_storage
from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def activation(x, hyperbolic):
    """The logistic function of ``x``, or where ``hyperbolic`` the tangent, which is made of that of ``2 * x``.

    Of small float32 numbers that is a polynomial (Cephes), since the difference would cancel.
    """
    logistic = 1 / (1 + tl.exp(tl.where(hyperbolic, -2 * x, -x)))
    tangent = 2 * logistic - 1
    if x.dtype != tl.float64:
        z = x * x
        series = -5.70498872745e-3 * z + 2.06390887954e-2
        series = (series * z - 5.37397155531e-2) * z + 1.33314422036e-1
        series = (series * z - 3.33332819422e-1) * z * x + x
        tangent = tl.where(z < 0.390625, series, tangent)
    return tl.where(hyperbolic, tangent, logistic)


@triton.jit
@no_type_check
def split_gates(gates, M: tl.constexpr, PADDED_K: tl.constexpr):
    """Input, forget, cell and output gates ``[M, PADDED_K]`` of ``[4 * M, PADDED_K]``, one behind the other."""
    even, odd = tl.split(tl.permute(tl.reshape(gates, (2, 2, M, PADDED_K)), (2, 3, 0, 1)))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@triton.jit
@no_type_check
def tile_offsets(t, rows, width, Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr,
           PADDED_K: tl.constexpr, COPIES: tl.constexpr, INDEX: tl.constexpr):  # fmt: skip
    """This program's blocks, ``COPIES`` one behind the other: row, row of all steps, which copy, block, and which are.

    Then of their numbers: place among the gates of a copy's kind, place among cells, and which there are of either.
    """
    m = tl.arange(0, COPIES * TILE_ROWS * TILE_BLOCKS)
    tiles: tl.constexpr = (Q + TILE_BLOCKS - 1) // TILE_BLOCKS
    row = tl.program_id(0) // tiles * TILE_ROWS + m // TILE_BLOCKS % TILE_ROWS
    block = tl.program_id(0) % tiles * TILE_BLOCKS + m % TILE_BLOCKS
    copy = m // (TILE_ROWS * TILE_BLOCKS)
    inside = (row < rows) & (block < Q)
    k = tl.arange(0, PADDED_K)
    channel = (block * K)[:, None] + k[None, :]
    number = tl.cast(t, INDEX) * rows + row
    known = inside[:, None] & (k < K)[None, :]
    gate = (number * 4 + copy)[:, None] * (Q * K) + channel
    cell = number[:, None] * width + channel
    return row.to(INDEX), number, copy, block, inside, gate, cell, known, known & (channel < width)


@triton.jit
@no_type_check
def load_inverse_dft(
    sums, spectra, basis, row, block, inside, rows, ROW_BLOCKS: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr,
    BLOCK_K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``sums`` and the blocks whose ``spectra [F, rows, 2, ROW_BLOCKS]`` are there; they are waited for."""
    F: tl.constexpr = (K + 1) // 2
    k = tl.arange(0, PADDED_K)
    for s0 in tl.static_range(0, 2 * F, BLOCK_K):
        s = s0 + tl.arange(0, BLOCK_K)
        basis_hi, basis_lo = load_basis(basis, s[:, None] * K + k[None, :], (s < 2 * F)[:, None] & (k < K)[None, :], 2 * F * K)
        if s0 == 0:
            griddepcontrol(PDL)
        place, known = spectrum_pointers(spectra, row, block, s, inside, rows, ROW_BLOCKS, F)
        sums += multiply_basis(tl.load(place, known, 0.0), basis_hi, basis_lo, False, ACC, PRECISION, UPCAST)
    return sums


@triton.jit
@no_type_check
def store_dft(
    values, basis, spectra, row, block, inside, rows, ROW_BLOCKS: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr,
    BLOCK_K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The transforms of ``values``, a block split_gates, to their tile_offsets in ``spectra [F, rows, 2, ROW_BLOCKS]``."""
    F: tl.constexpr = (K + 1) // 2
    k = tl.arange(0, PADDED_K)
    for s0 in tl.static_range(0, 2 * F, BLOCK_K):
        s = s0 + tl.arange(0, BLOCK_K)
        basis_hi, basis_lo = load_basis(basis, s[None, :] * K + k[:, None], (k < K)[:, None] & (s < 2 * F)[None, :], 2 * F * K)
        sums = multiply_basis(values, basis_hi, basis_lo, False, ACC, PRECISION, UPCAST)
        place, known = spectrum_pointers(spectra, row, block, s, inside, rows, ROW_BLOCKS, F)
        tl.store(place, round_to_storage(sums, spectra.dtype.element_ty, TF32, UPCAST), known)


@triton.jit
@no_type_check
def spectrum_pointers(place, row, block, s, inside, rows, ROW_BLOCKS: tl.constexpr, F: tl.constexpr):
    """Numbers ``s`` of spectra ``[F, rows, 2, ROW_BLOCKS]``, real parts first, of rows and blocks; and which are."""
    place += row[:, None] * 2 * ROW_BLOCKS + block[:, None]
    place += (s % F).to(row.dtype)[None, :] * rows * 2 * ROW_BLOCKS + (s // F)[None, :] * ROW_BLOCKS
    return place, inside[:, None] & (s < 2 * F)[None, :]


@triton.jit(do_not_specialize=("t",))
@no_type_check
def step_kernel(
    inputs, products, basis, gates, cells, hidden, spectra, t, steps, rows, width,
    Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr, PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Step ``t``: the gates from ``inputs`` and ``products``, the spectra of what the last hidden state adds to them.

    ``inputs`` and ``gates`` are ``[steps, rows, 4, Q*K]``, ``cells [steps + 1, rows, width]`` are known up to ``t``,
    ``hidden [steps, rows, width]`` up to the step before, and ``spectra [F, steps * rows, 2, Q]`` are those that split_gates
    step begins with.
    """
    M: tl.constexpr = TILE_ROWS * TILE_BLOCKS
    row, _, kind, block, inside, gate, _, known, _ = tile_offsets(t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 4, INDEX)
    sums = tl.load(inputs + gate, known, 0.0).to(ACC)
    _, number, _, own, within, _, cell, _, used = tile_offsets(t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 1, INDEX)
    before = tl.load(cells + cell, used, 0.0)
    sums = load_inverse_dft(
        sums, products, basis, row, kind * Q + block, inside, rows, 4 * Q, K, PADDED_K, BLOCK_K, ACC, PRECISION, UPCAST, PDL
    )
    sums = activation(sums, (kind == 2)[:, None])
    tl.store(gates + gate, rounded(sums, gates.dtype.element_ty, UPCAST), known)
    i, f, g, o = split_gates(sums, M, PADDED_K)
    c = f * before + i * g
    tl.store(cells + tl.cast(rows, INDEX) * width + cell, c, used)
    h = rounded(o * activation(c, True), hidden.dtype.element_ty, UPCAST)
    tl.store(hidden + cell, h, used)
    if t + 1 < steps:
        store_dft(
            tl.where(used, h.to(ACC), 0.0), basis, spectra, number + rows, own, within, steps * rows, Q, K, PADDED_K, BLOCK_K,
            ACC, PRECISION, TF32, UPCAST,
        )  # fmt: skip


@triton.jit(do_not_specialize=("t",))
@no_type_check
def step_gradient_kernel(
    outer, products, carry, basis, gates, cells, gradients, spectra, t, steps, rows, width,
    Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr, PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Step ``t`` of the way back, from what `step_kernel` left.

    ``products [F, rows, 2, Q]`` are spectra of what the step after adds to the hidden state's gradient ``outer [steps,
    rows, width]``; ``carry [2, rows, width]`` is the gradient of the cells, behind steps of either parity.
    ``gradients`` are those of the inputs, ``spectra [F, steps * rows, 2, 4*Q]`` theirs.
    """
    row, number, kind, block, inside, gate, cell, known, used = tile_offsets(
        t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 4, INDEX
    )
    kinds = kind[:, None]
    own = tl.load(gates + gate, known, 0.0).to(ACC)
    # What a gate was multiplied by: input and cell gates by split_gates other, the forget gate by the cell before.
    other = tl.load(gates + gate + (2 - 2 * kinds) * (Q * K), known & (kinds % 2 == 0), 0.0).to(ACC)
    other += tl.load(cells + cell, used & (kinds == 1), 0.0)
    tangent = activation(tl.load(cells + tl.cast(rows, INDEX) * width + cell, used, 0.0), True)
    other = tl.where(kinds == 3, tangent, other)
    slope = other * tl.where(kinds == 2, 1 - own * own, own * (1 - own))
    through = tl.load(gates + gate + (3 - kinds) * (Q * K), known, 0.0).to(ACC) * (1 - tangent * tangent)
    last = row[:, None] * width + (cell - number[:, None] * width)
    dc = tl.load(carry + (t + 1) % 2 * tl.cast(rows, INDEX) * width + last, used, 0.0)
    dh = tl.load(outer + cell, used, 0.0).to(ACC)
    dh = load_inverse_dft(dh, products, basis, row, block, inside, rows, Q, K, PADDED_K, BLOCK_K, ACC, PRECISION, UPCAST, PDL)
    dh = tl.where(used, dh, 0.0)
    dc += dh * through
    values = rounded(tl.where(kinds == 3, dh, dc) * slope, gradients.dtype.element_ty, UPCAST)
    store_dft(
        values.to(ACC), basis, spectra, number, kind * Q + block, inside, steps * rows, 4 * Q, K, PADDED_K, BLOCK_K,
        ACC, PRECISION, TF32, UPCAST,
    )  # fmt: skip
    tl.store(gradients + gate, values, known)
    tl.store(carry + t % 2 * tl.cast(rows, INDEX) * width + last, dc * own, used & (kinds == 1))


def step_cost(rows: int, blocks: int, block_size: int, io_bytes: int, spectral_bytes: int) -> Cost:
    """Either kernel's step: five transforms of split_gates block of a state; its cells are float32."""
    transforms = dft_cost(rows, 5 * blocks, block_size, 0, 0)
    numbers = rows * blocks * block_size
    packed = rows * blocks * 2 * ((block_size + 1) // 2)
    return Cost(
        transforms.flops,
        numbers * (4 * io_bytes + 4) + 4 * packed * spectral_bytes,
        numbers * (5 * io_bytes + 4) + packed * spectral_bytes,
    )
