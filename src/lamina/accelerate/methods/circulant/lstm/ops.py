"""The LSTM recurrence and its backward pass over all time steps, as PyTorch operators.

Shapes are those of `kernels`. Double backward recomputes the recurrence step by step with the differentiable operators
of `ops` and `spectral.ops`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import kernels as matmul_kernels
from lamina.accelerate.methods.circulant.lstm import kernels
from lamina.accelerate.methods.circulant.ops import (
    reduce_split_k,
    run_spectral_matmul_backward,
    spectral_matmul,
    spectral_matmul_flops,
    spectral_matmul_launch,
    tf32,
)
from lamina.accelerate.methods.circulant.reference import lstm_cell
from lamina.accelerate.methods.circulant.spectral.ops import (
    basis_for,
    dft,
    idft,
    run_dft,
    run_idft,
    spectrum_like,
    transform_constexprs,
)
from lamina.accelerate.methods.circulant.tiles import LSTMStepTile, lstm_step_tile
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.replay import register_kernel
from lamina.accelerate.runtime.triton_ops import pdl_options


@torch.library.custom_op("lamina::circulant_recurrence", mutates_args=())
def recurrence(
    inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All hidden states and the last cell state; for backward, gates, cell states and spectra of hidden states.

    Args:
        inputs: ``(steps, rows, 4 * q * k)``, the input projections with biases.
        ws: ``[F, 4 * q, 2, q]``, the spectrum of the hidden-to-hidden weight.
        h: ``(rows, width)``, the initial hidden state; ``q`` blocks hold ``width`` features.
        c: ``(rows, width)``, the initial cell state.
        block_size: ``k``.
    """
    return _recurrence(inputs, ws, h, c, block_size)


@cached_launches
def _recurrence(
    inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs, ws = inputs.contiguous(), ws.contiguous()
    hidden, last, gates, cells, spectra = _recurrence_like(inputs, ws, h, c)
    steps, rows, width = hidden.shape
    h = h[..., None]
    first = spectrum_like(h, block_size, 1, ws.dtype)
    run_dft(h, h, None, first, first, block_size, 1, False, pair=False)
    spectra[:, :rows] = first
    cells[0] = c
    ys = ws.new_empty(ws.shape[0], rows, 2, ws.shape[1])
    tile = lstm_step_tile(block_size, rows, ws.shape[-1])
    constexprs = _constexprs(tile, block_size, ws, (inputs[0], ys), inputs, gates, cells, hidden, spectra)
    basis = basis_for(spectra, block_size, False)
    programs = _programs(tile, rows, ws)
    for t, matmul in _by_step(spectra, ws, ys, backward=False):
        _multiply(*matmul)
        launch(
            kernels.step_kernel, programs, inputs,
            inputs, ys, basis, gates, cells, hidden, spectra, t, steps, rows, width, sizes=hidden.shape, **constexprs,
        )  # fmt: skip
    last.copy_(cells[-1])
    return hidden, last, gates, cells, spectra


@torch.library.custom_op("lamina::circulant_recurrence_backward", mutates_args=())
def recurrence_backward(
    outer: Tensor, last: Tensor | None, ws: Tensor, gates: Tensor, cells: Tensor, spectra: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `recurrence` with respect to its tensors, from those of its first two outputs."""
    return _recurrence_backward(outer, last, ws, gates, cells, spectra, block_size)


@cached_launches
def _recurrence_backward(
    outer: Tensor, last: Tensor | None, ws: Tensor, gates: Tensor, cells: Tensor, spectra: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outer, ws = outer.contiguous(), ws.contiguous()
    steps, rows, width = outer.shape
    gradients = gates.new_empty(gates.shape)
    slots, outputs, _, q = ws.shape
    carry = cells.new_empty(2, rows, width)
    carry[steps % 2] = 0 if last is None else last
    spectra_dgates = ws.new_empty(slots, steps * rows, 2, outputs)
    dhs = ws.new_zeros(slots, rows, 2, q)
    tile = lstm_step_tile(block_size, rows, q)
    constexprs = _constexprs(tile, block_size, ws, (gates[0], dhs), outer, gates, cells, spectra_dgates)
    basis = basis_for(spectra_dgates, block_size, False)
    programs = _programs(tile, rows, ws)
    for t, matmul in _by_step(spectra_dgates, ws, dhs, backward=True):
        launch(
            kernels.step_backward_kernel, programs, outer,
            outer, dhs, carry, basis, gates, cells, gradients, spectra_dgates, t, steps, rows, width,
            sizes=outer.shape, **constexprs,
        )  # fmt: skip
        _multiply(*matmul)
    dh = outer.new_empty(rows, width, 1)
    run_idft(dhs, dhs, None, None, dh, dh, block_size, 1, False, pair=False)
    partials = run_spectral_matmul_backward(spectra_dgates, spectra, None, None, Conv2dProblem(steps * rows))
    dws = reduce_split_k(partials, spectra_dgates.dtype)
    return gradients, dws, dh.squeeze(-1), carry[0]


def _by_step(spectra: Tensor, ws: Tensor, out: Tensor, backward: bool) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Each time step, with ``backward`` from the last, and the launch of its spectral matmul."""
    rows = out.shape[1]
    steps = spectra.shape[1] // max(rows, 1)
    programs, arguments, constexprs = spectral_matmul_launch(spectra[:, :rows], ws, out, Conv2dProblem(rows), backward)
    for t in reversed(range(steps)) if backward else range(steps):
        yield t, (programs, spectra[:, t * rows : (t + 1) * rows], arguments, constexprs)


def _multiply(programs: int, a: Tensor, arguments: tuple[Any, ...], constexprs: dict[str, Any]) -> None:
    ws, *_ = arguments  # the only operand that this package did not allocate, hence of any alignment
    sizes = a.shape, a.stride(), ws.data_ptr() % 16
    launch(matmul_kernels.spectral_matmul_kernel, programs, a, a, *arguments, sizes=sizes, **constexprs)


def _constexprs(
    tile: LSTMStepTile, block_size: int, ws: Tensor, step_tensors: tuple[Tensor, ...], *tensors: Tensor
) -> dict[str, Any]:
    return {
        "Q": ws.shape[-1], "K": block_size, "TILE_ROWS": tile.rows, "TILE_BLOCKS": tile.blocks,
        "PADDED_K": tile.padded_k, "BLOCK_K": tile.block_k, "TF32": ws.dtype == torch.float32 and tf32(),
        "num_warps": tile.num_warps,
        **transform_constexprs(ws.dtype, block_size, *tensors), **pdl_options(*step_tensors),
    }  # fmt: skip


def _programs(tile: LSTMStepTile, rows: int, ws: Tensor) -> int:
    return -(-rows // tile.rows) * -(-ws.shape[-1] // tile.blocks)


def _recurrence_like(inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    (steps, rows, _), width = inputs.shape, h.shape[1]
    state_dtype = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return (
        inputs.new_empty(steps, rows, width),
        inputs.new_empty(rows, width),
        inputs.new_empty(inputs.shape),
        inputs.new_empty(steps + 1, rows, width, dtype=state_dtype),
        ws.new_empty(ws.shape[0], steps * rows, 2, ws.shape[-1]),
    )


@recurrence.register_fake
def _(inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor, block_size: int) -> tuple[Tensor, ...]:
    return _recurrence_like(inputs, ws, h, c)


@recurrence_backward.register_fake
def _(
    outer: Tensor, last: Tensor | None, ws: Tensor, gates: Tensor, cells: Tensor, spectra: Tensor, block_size: int
) -> tuple[Tensor, ...]:
    state = outer.shape[1:]
    return gates.new_empty(gates.shape), ws.new_empty(ws.shape), outer.new_empty(state), cells.new_empty(state)


def recurrence_by_steps(inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """The first two outputs of `recurrence`, by operators that are differentiable to any order."""
    window, width, hidden = Conv2dProblem(len(h)).pack(), h.shape[1], []
    for step in inputs:
        hs = dft(h[..., None], None, block_size, 1, False, ws.dtype)
        ys = spectral_matmul(hs, ws, window)
        recurrent = idft(ys, None, None, block_size, 1, False, step.shape[1], 1, False, step.dtype).squeeze(-1)
        h, c = lstm_cell(torch.unflatten(step + recurrent, -1, (4, -1))[..., :width], c)
        hidden.append(h)
    return torch.stack(hidden), c


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.block_size = inputs
    _, _, *saved = output
    ctx.mark_non_differentiable(*saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *saved)


def _gradient(ctx: Any, outer: Tensor | None, last: Tensor | None, *_: None) -> tuple[Any, ...]:
    inputs, ws, h, c, gates, cells, spectra = ctx.saved_tensors
    if outer is None:
        outer = inputs.new_zeros(len(inputs), *h.shape)
    if torch.is_grad_enabled():  # double backward
        leaves = [x for x, needed in zip((inputs, ws, h, c), ctx.needs_input_grad, strict=False) if needed]
        last = torch.zeros_like(c) if last is None else last
        found = iter(torch.autograd.grad(
            recurrence_by_steps(inputs, ws, h, c, ctx.block_size), leaves, (outer, last), create_graph=True
        ))  # fmt: skip
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:4]), None
    saved = ws, gates, cells, spectra, ctx.block_size
    *found, dc = call_in_backward(recurrence_backward, _recurrence_backward, outer, last, *saved)
    return *found, dc.to(c.dtype), None


recurrence.register_autograd(_gradient, setup_context=_save)
recurrence_eager = without_dispatch(recurrence, _recurrence, _save, _gradient)
register_kernel(recurrence_backward, _recurrence_backward)


@register_flop_formula(torch.ops.lamina.circulant_recurrence)
def _(inputs: Any, ws: Any, h: Any, c: Any, block_size: int, **_: Any) -> int:
    return _flops(inputs, ws, block_size)


@register_flop_formula(torch.ops.lamina.circulant_recurrence_backward)
def _(outer: Any, last: Any, ws: Any, gates: Any, cells: Any, spectra: Any, block_size: int, **_: Any) -> int:
    steps, rows, _ = gates
    weight_flops = spectral_matmul_flops(Conv2dProblem(steps * rows).pack(), ws[1], ws[-1], ws[0])
    return _flops(gates, ws, block_size) + weight_flops


def _flops(inputs: Any, ws: Any, block_size: int) -> int:
    """FLOPs of the forward or backward pass over all time steps, with its spectral matmuls."""
    steps, rows, _ = inputs
    _, outputs, _, q = ws
    matmuls = spectral_matmul_flops(Conv2dProblem(steps * rows).pack(), outputs, q, ws[0])
    return matmuls + kernels.step_cost(steps * rows, q, block_size, 0, 0).flops
