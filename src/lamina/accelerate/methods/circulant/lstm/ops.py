"""The recurrence as PyTorch operators: all steps, and all steps back. Shapes are those of the kernels.

A gradient of a gradient is made by the operators of `ops` and `transform`, step by step, from what came in.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from lamina.accelerate.methods.circulant import kernels as products
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
from lamina.accelerate.methods.circulant.window import Window
from lamina.accelerate.runtime.eager_op import call_in_backward, without_dispatch
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.launch_cache import cached_launches
from lamina.accelerate.runtime.triton_ops import pdl_options


@torch.library.custom_op("lamina::circulant_recurrence", mutates_args=())
def recurrence(
    inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All hidden states and the last cells; and for the way back, gates, cells and spectra of hidden states.

    Args:
        inputs: ``(steps, rows, 4 * q * k)``, what the steps' inputs and biases give the gates.
        ws: ``[F, 4 * q, 2, q]``, the spectrum of the weight between hidden states and gates.
        h: ``(rows, width)``, the hidden state to begin with; ``q`` blocks hold ``width``.
        c: ``(rows, width)``, the cells to begin with.
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
    """Gradients of `recurrence` by ``inputs``, ``ws``, ``h`` and ``c``, from those of its first two results."""
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
    above = ws.new_empty(slots, steps * rows, 2, outputs)
    dhs = ws.new_zeros(slots, rows, 2, q)
    tile = lstm_step_tile(block_size, rows, q)
    constexprs = _constexprs(tile, block_size, ws, (gates[0], dhs), outer, gates, cells, above)
    basis = basis_for(above, block_size, False)
    programs = _programs(tile, rows, ws)
    for t, matmul in _by_step(above, ws, dhs, backward=True):
        launch(
            kernels.step_gradient_kernel, programs, outer,
            outer, dhs, carry, basis, gates, cells, gradients, above, t, steps, rows, width, sizes=outer.shape, **constexprs,
        )  # fmt: skip
        _multiply(*matmul)
    dh = outer.new_empty(rows, width, 1)
    run_idft(dhs, dhs, None, None, dh, dh, block_size, 1, False, pair=False)
    dws = reduce_split_k(run_spectral_matmul_backward(above, spectra, None, None, Window(steps * rows)), above.dtype)
    return gradients, dws, dh.squeeze(-1), carry[0]


def _by_step(spectra: Tensor, ws: Tensor, out: Tensor, backward: bool) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Each step, ``back`` from the last, and the launch that multiplies its ``spectra`` by the weights'."""
    rows = out.shape[1]
    steps = spectra.shape[1] // max(rows, 1)
    programs, arguments, constexprs = spectral_matmul_launch(spectra[:, :rows], ws, out, Window(rows), backward)
    for t in reversed(range(steps)) if backward else range(steps):
        yield t, (programs, spectra[:, t * rows : (t + 1) * rows], arguments, constexprs)


def _multiply(programs: int, a: Tensor, arguments: tuple[Any, ...], constexprs: dict[str, Any]) -> None:
    ws, *_ = arguments  # which alone may be the caller's own
    sizes = a.shape, a.stride(), ws.data_ptr() % 16
    launch(products.spectral_matmul_kernel, programs, a, a, *arguments, sizes=sizes, **constexprs)


def _constexprs(
    tile: LSTMStepTile, block_size: int, ws: Tensor, of_a_step: tuple[Tensor, ...], *tensors: Tensor
) -> dict[str, Any]:
    told = transform_constexprs(ws.dtype, block_size, *tensors) | pdl_options(*of_a_step)
    return {
        "Q": ws.shape[-1], "K": block_size, "TILE_ROWS": tile.rows, "TILE_BLOCKS": tile.blocks, "PADDED_K": tile.padded_k,
        "BLOCK_K": tile.block_k, "TF32": ws.dtype == torch.float32 and tf32(), "num_warps": tile.num_warps, **told,
    }  # fmt: skip


def _programs(tile: LSTMStepTile, rows: int, ws: Tensor) -> int:
    return -(-rows // tile.rows) * -(-ws.shape[-1] // tile.blocks)


def _recurrence_like(inputs: Tensor, ws: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    (steps, rows, _), width = inputs.shape, h.shape[1]
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    return (
        inputs.new_empty(steps, rows, width),
        inputs.new_empty(rows, width),
        inputs.new_empty(inputs.shape),
        inputs.new_empty(steps + 1, rows, width, dtype=wide),
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
    """The first two results of `recurrence`, by operators that can be differentiated as often as one likes."""
    window, width, hidden = Window(len(h)).pack(), h.shape[1], []
    for step in inputs:
        hs = dft(h[..., None], None, block_size, 1, False, ws.dtype)
        ys = spectral_matmul(hs, ws, window)
        more = idft(ys, None, None, block_size, 1, False, step.shape[1], 1, False, step.dtype).squeeze(-1)
        h, c = lstm_cell(torch.unflatten(step + more, -1, (4, -1))[..., :width], c)
        hidden.append(h)
    return torch.stack(hidden), c


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.block_size = inputs
    _, _, *kept = output
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *kept)


def _gradient(ctx: Any, outer: Tensor | None, last: Tensor | None, *_: None) -> tuple[Any, ...]:
    inputs, ws, h, c, gates, cells, spectra = ctx.saved_tensors
    if outer is None:
        outer = inputs.new_zeros(len(inputs), *h.shape)
    if torch.is_grad_enabled():  # to be differentiated again
        leaves = [x for x, asked in zip((inputs, ws, h, c), ctx.needs_input_grad, strict=False) if asked]
        last = torch.zeros_like(c) if last is None else last
        found = iter(torch.autograd.grad(
            recurrence_by_steps(inputs, ws, h, c, ctx.block_size), leaves, (outer, last), create_graph=True
        ))  # fmt: skip
        return *(next(found) if asked else None for asked in ctx.needs_input_grad[:4]), None
    kept = ws, gates, cells, spectra, ctx.block_size
    *found, dc = call_in_backward(recurrence_backward, _recurrence_backward, outer, last, *kept)
    return *found, dc.to(c.dtype), None


recurrence.register_autograd(_gradient, setup_context=_save)
recurrence_eager = without_dispatch(recurrence, _recurrence, _save, _gradient)


@register_flop_formula(torch.ops.lamina.circulant_recurrence)
def _(inputs: Any, ws: Any, h: Any, c: Any, block_size: int, **_: Any) -> int:
    return _flops(inputs, ws, block_size)


@register_flop_formula(torch.ops.lamina.circulant_recurrence_backward)
def _(outer: Any, last: Any, ws: Any, gates: Any, cells: Any, spectra: Any, block_size: int, **_: Any) -> int:
    steps, rows, _ = gates
    return _flops(gates, ws, block_size) + spectral_matmul_flops(Window(steps * rows).pack(), ws[1], ws[-1], ws[0])


def _flops(inputs: Any, ws: Any, block_size: int) -> int:
    """Of all steps in either direction, and their products."""
    steps, rows, _ = inputs
    _, outputs, _, q = ws
    products = spectral_matmul_flops(Window(steps * rows).pack(), outputs, q, ws[0])
    return products + kernels.step_cost(steps * rows, q, block_size, 0, 0).flops
