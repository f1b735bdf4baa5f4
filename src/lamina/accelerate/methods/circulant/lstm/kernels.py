"""One time step of the LSTM recurrence between two spectral matmuls: inverse DFT, cell, DFT.

Dimensions, layouts and constexprs are those of `spectral.kernels`. The gates are the input, forget, cell and output
gate. For hidden states of ``Q`` blocks, gates are ``[..., 4, Q * K]`` and their spectra ``[F, rows, 2, 4 * Q]``. States
and gates of all time steps are concatenated, ``rows`` for each. ``t`` is the time step, on which no kernel is
specialized.

Outputs of kernels before the preceding one are read before `griddepcontrol`: the preceding kernel has waited for them.
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
    """The logistic function of ``x``, or where ``hyperbolic`` its hyperbolic tangent, from the logistic of ``2 * x``.

    For small float32 ``x`` the tangent is a polynomial (Cephes), since that difference would cancel.
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
    """The input, forget, cell and output gates ``[M, PADDED_K]`` of the concatenated ``[4 * M, PADDED_K]``."""
    even, odd = tl.split(tl.permute(tl.reshape(gates, (2, 2, M, PADDED_K)), (2, 3, 0, 1)))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@triton.jit
@no_type_check
def tile_offsets(
    t, rows, width, Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr,
    PADDED_K: tl.constexpr, COPIES: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Indices, offsets and masks of this program's tile, repeated for ``COPIES`` gates.

    Returns the row, the row among all time steps, the gate, the block and its mask; then, for the elements of
    the blocks, offsets into the gates and into the states, and the masks of both.
    """
    m = tl.arange(0, COPIES * TILE_ROWS * TILE_BLOCKS)
    tiles: tl.constexpr = (Q + TILE_BLOCKS - 1) // TILE_BLOCKS
    row = tl.program_id(0) // tiles * TILE_ROWS + m // TILE_BLOCKS % TILE_ROWS
    block = tl.program_id(0) % tiles * TILE_BLOCKS + m % TILE_BLOCKS
    gate_index = m // (TILE_ROWS * TILE_BLOCKS)
    block_mask = (row < rows) & (block < Q)
    k = tl.arange(0, PADDED_K)
    channel = (block * K)[:, None] + k[None, :]
    step_row = tl.cast(t, INDEX) * rows + row
    mask = block_mask[:, None] & (k < K)[None, :]
    gate_offsets = (step_row * 4 + gate_index)[:, None] * (Q * K) + channel
    cell_offsets = step_row[:, None] * width + channel
    cell_mask = mask & (channel < width)
    return row.to(INDEX), step_row, gate_index, block, block_mask, gate_offsets, cell_offsets, mask, cell_mask


@triton.jit
@no_type_check
def load_inverse_dft(
    acc, spectra, basis, row, block, block_mask, rows,
    ROW_BLOCKS: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``acc`` plus the inverse DFT of blocks of ``spectra [F, rows, 2, ROW_BLOCKS]``; waits for their kernel."""
    F: tl.constexpr = (K + 1) // 2
    k = tl.arange(0, PADDED_K)
    for s0 in tl.static_range(0, 2 * F, BLOCK_K):
        s = s0 + tl.arange(0, BLOCK_K)
        basis_mask = (s < 2 * F)[:, None] & (k < K)[None, :]
        basis_hi, basis_lo = load_basis(basis, s[:, None] * K + k[None, :], basis_mask, 2 * F * K)
        if s0 == 0:
            griddepcontrol(PDL)
        pointers, mask = spectrum_pointers(spectra, row, block, s, block_mask, rows, ROW_BLOCKS, F)
        acc += multiply_basis(tl.load(pointers, mask, 0.0), basis_hi, basis_lo, False, ACC, PRECISION, UPCAST)
    return acc


@triton.jit
@no_type_check
def store_dft(
    values, basis, spectra, row, block, block_mask, rows,
    ROW_BLOCKS: tl.constexpr, K: tl.constexpr, PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Store the DFT of ``values``, one block per row, to ``spectra [F, rows, 2, ROW_BLOCKS]``."""
    F: tl.constexpr = (K + 1) // 2
    k = tl.arange(0, PADDED_K)
    for s0 in tl.static_range(0, 2 * F, BLOCK_K):
        s = s0 + tl.arange(0, BLOCK_K)
        basis_mask = (k < K)[:, None] & (s < 2 * F)[None, :]
        basis_hi, basis_lo = load_basis(basis, s[None, :] * K + k[:, None], basis_mask, 2 * F * K)
        acc = multiply_basis(values, basis_hi, basis_lo, False, ACC, PRECISION, UPCAST)
        pointers, mask = spectrum_pointers(spectra, row, block, s, block_mask, rows, ROW_BLOCKS, F)
        tl.store(pointers, round_to_storage(acc, spectra.dtype.element_ty, TF32, UPCAST), mask)


@triton.jit
@no_type_check
def spectrum_pointers(spectra, row, block, s, block_mask, rows, ROW_BLOCKS: tl.constexpr, F: tl.constexpr):
    """Pointers to elements ``s`` of blocks of ``spectra [F, rows, 2, ROW_BLOCKS]``, real parts first; their mask."""
    pointers = spectra + (row[:, None] * 2 * ROW_BLOCKS + block[:, None])
    pointers += (s % F).to(row.dtype)[None, :] * rows * 2 * ROW_BLOCKS + (s // F)[None, :] * ROW_BLOCKS
    return pointers, block_mask[:, None] & (s < 2 * F)[None, :]


@triton.jit(do_not_specialize=("t",))
@no_type_check
def step_kernel(
    inputs, products, basis, gates, cells, hidden, spectra, t, steps, rows, width,
    Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr,
    PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Time step ``t``: gates from ``inputs`` and ``products``, the new states, and the spectra of the hidden state.

    ``inputs`` and ``gates`` are ``[steps, rows, 4, Q*K]``. ``cells [steps + 1, rows, width]`` are known up to ``t``,
    ``hidden [steps, rows, width]`` up to the previous step. ``spectra [F, steps * rows, 2, Q]`` are those of the hidden
    state at the beginning of each step.
    """
    M: tl.constexpr = TILE_ROWS * TILE_BLOCKS
    row, _, gate_index, block, block_mask, gate_offsets, _, mask, _ = tile_offsets(
        t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 4, INDEX
    )
    acc = tl.load(inputs + gate_offsets, mask, 0.0).to(ACC)
    _, step_row, _, state_block, state_mask, _, cell_offsets, _, cell_mask = tile_offsets(
        t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 1, INDEX
    )
    previous = tl.load(cells + cell_offsets, cell_mask, 0.0)
    acc = load_inverse_dft(
        acc, products, basis, row, gate_index * Q + block, block_mask, rows, 4 * Q, K, PADDED_K, BLOCK_K,
        ACC, PRECISION, UPCAST, PDL,
    )  # fmt: skip
    acc = activation(acc, (gate_index == 2)[:, None])
    tl.store(gates + gate_offsets, rounded(acc, gates.dtype.element_ty, UPCAST), mask)
    i, f, g, o = split_gates(acc, M, PADDED_K)
    c = f * previous + i * g
    tl.store(cells + tl.cast(rows, INDEX) * width + cell_offsets, c, cell_mask)
    h = rounded(o * activation(c, True), hidden.dtype.element_ty, UPCAST)
    tl.store(hidden + cell_offsets, h, cell_mask)
    if t + 1 < steps:
        store_dft(
            tl.where(cell_mask, h.to(ACC), 0.0), basis, spectra, step_row + rows, state_block, state_mask, steps * rows,
            Q, K, PADDED_K, BLOCK_K, ACC, PRECISION, TF32, UPCAST,
        )  # fmt: skip


@triton.jit(do_not_specialize=("t",))
@no_type_check
def step_backward_kernel(
    outer, products, carry, basis, gates, cells, gradients, spectra, t, steps, rows, width,
    Q: tl.constexpr, K: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr,
    PADDED_K: tl.constexpr, BLOCK_K: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, TF32: tl.constexpr,
    UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The backward pass of time step ``t``, from what `step_kernel` saved.

    ``products [F, rows, 2, Q]`` is the spectrum that the following step adds to the gradient of the hidden state,
    ``outer [steps, rows, width]``. ``carry [2, rows, width]`` is the gradient of the cells, in alternating buffers.
    ``gradients`` are those of the inputs, ``spectra [F, steps * rows, 2, 4*Q]`` their spectra.
    """
    row, step_row, gate_index, block, block_mask, gate_offsets, cell_offsets, mask, cell_mask = tile_offsets(
        t, rows, width, Q, K, TILE_ROWS, TILE_BLOCKS, PADDED_K, 4, INDEX
    )
    gate_columns = gate_index[:, None]
    own = tl.load(gates + gate_offsets, mask, 0.0).to(ACC)
    # The factor of each gate: input and cell gates multiply each other, the forget gate the previous cell state.
    other_offsets = gate_offsets + (2 - 2 * gate_columns) * (Q * K)
    other = tl.load(gates + other_offsets, mask & (gate_columns % 2 == 0), 0.0).to(ACC)
    other += tl.load(cells + cell_offsets, cell_mask & (gate_columns == 1), 0.0)
    tangent = activation(tl.load(cells + tl.cast(rows, INDEX) * width + cell_offsets, cell_mask, 0.0), True)
    other = tl.where(gate_columns == 3, tangent, other)
    slope = other * tl.where(gate_columns == 2, 1 - own * own, own * (1 - own))
    output_gate = tl.load(gates + gate_offsets + (3 - gate_columns) * (Q * K), mask, 0.0).to(ACC)
    through = output_gate * (1 - tangent * tangent)
    state_offsets = row[:, None] * width + (cell_offsets - step_row[:, None] * width)
    dc = tl.load(carry + (t + 1) % 2 * tl.cast(rows, INDEX) * width + state_offsets, cell_mask, 0.0)
    dh = tl.load(outer + cell_offsets, cell_mask, 0.0).to(ACC)
    dh = load_inverse_dft(
        dh, products, basis, row, block, block_mask, rows, Q, K, PADDED_K, BLOCK_K, ACC, PRECISION, UPCAST, PDL
    )
    dh = tl.where(cell_mask, dh, 0.0)
    dc += dh * through
    values = rounded(tl.where(gate_columns == 3, dh, dc) * slope, gradients.dtype.element_ty, UPCAST)
    store_dft(
        values.to(ACC), basis, spectra, step_row, gate_index * Q + block, block_mask, steps * rows,
        4 * Q, K, PADDED_K, BLOCK_K, ACC, PRECISION, TF32, UPCAST,
    )  # fmt: skip
    tl.store(gradients + gate_offsets, values, mask)
    tl.store(carry + t % 2 * tl.cast(rows, INDEX) * width + state_offsets, dc * own, cell_mask & (gate_columns == 1))


def step_cost(rows: int, blocks: int, block_size: int, io_bytes: int, spectral_bytes: int) -> Cost:
    """The cost of a time step of either kernel: five transforms of each block of a state; cells are float32."""
    transforms = dft_cost(rows, 5 * blocks, block_size, 0, 0)
    elements = rows * blocks * block_size
    packed = rows * blocks * 2 * ((block_size + 1) // 2)
    return Cost(
        transforms.flops,
        elements * (4 * io_bytes + 4) + 4 * packed * spectral_bytes,
        elements * (5 * io_bytes + 4) + packed * spectral_bytes,
    )
