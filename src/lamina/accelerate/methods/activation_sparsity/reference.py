"""The format and its products in PyTorch's own operators, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity.ellpack.format import (
    PANEL,
    TARGET_EXPONENT,
    EllpackDib,
    Rounding,
    check_capacity,
    check_panel,
    panels_of,
)
from lamina.errors import UsageError


def fit_scales(dense: Tensor, panel: int = PANEL) -> Tensor:
    """Powers of two that bring each panel's largest finite value just below float16's largest, float32 ``(panels,)``.

    1 for a panel without finite non-zeros, and for float16, which needs none.
    """
    if dense.dtype == torch.float16:
        return dense.new_ones(panels_of(len(dense), panel), dtype=torch.float32)
    size = _panels(torch.nan_to_num(dense.detach().abs(), nan=0.0, posinf=0.0), panel).double()
    largest = size.amax((1, 2)) if size.numel() else size.new_zeros(size.shape[0])
    _, exponent = torch.frexp(largest)  # largest = m * 2 ** exponent with 0.5 <= m < 1
    power = (exponent - 1 - TARGET_EXPONENT).clamp(-120, 120)
    return torch.where(largest > 0, torch.exp2(power.double()), 1.0).float()


def from_dense(
    dense: Tensor, *, panel: int = PANEL, capacity: int | None = None, scales: Tensor | None = None
) -> EllpackDib:
    """A matrix ``(rows, columns)`` in the format.

    Args:
        dense: of any strides and floating-point type.
        panel: rows of a panel, at most 65,536.
        capacity: slots of a column; the fullest column's non-zeros, if left out.
        scales: of the panels, powers of two; fitted, if left out.

    Raises:
        UsageError: it is no matrix of floating-point numbers, or a number is out of range.
    """
    check_matrix(dense)
    check_panel(panel)
    check_capacity(capacity)
    scales = fit_scales(dense, panel) if scales is None else scales
    values = _panels(dense.detach(), panel)
    present = values != 0
    counts = present.sum(1, dtype=torch.int32)
    if capacity is None:
        capacity = int(counts.max()) if counts.numel() else 0
    slots = present.cumsum(1) - 1
    p, row, column = (present & (slots < capacity)).nonzero(as_tuple=True)
    words = torch.zeros(len(values), capacity, dense.shape[1], dtype=torch.int32, device=dense.device)
    wide = values.double()[p, row, column] / scales.double()[p]
    words[p, slots[p, row, column], column] = pack_words(wide.half(), row)
    return EllpackDib(words, counts, scales, dense.shape[0], panel)


def to_dense(sparse: EllpackDib, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix ``(rows, columns)``, its values as float16 held them.

    Raises:
        UsageError: a column did not fit.
    """
    sparse.check()
    _, capacity, columns = sparse.words.shape
    slot = torch.arange(capacity, device=sparse.words.device)
    p, s, column = (slot[None, :, None] < sparse.counts[:, None]).nonzero(as_tuple=True)
    values, row = unpack_words(sparse.words[p, s, column])
    dense = torch.zeros(sparse.rows, columns, dtype=dtype, device=sparse.words.device)
    dense[p * sparse.panel + row, column] = (values.double() * sparse.scales.double()[p]).to(dtype)
    return dense


def pack_words(values: Tensor, rows: Tensor) -> Tensor:
    """Words of float16 values and rows below 65,536."""
    high = torch.where(rows < PANEL // 2, rows, rows - PANEL).to(torch.int32)
    low = values.view(torch.int16).to(torch.int32) & (PANEL - 1)
    return (high << 16) | low


def unpack_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """The float16 values and the rows, int64, of words."""
    values = words.to(torch.int64) & (PANEL - 1)
    signed = torch.where(values < PANEL // 2, values, values - PANEL)
    return signed.to(torch.int16).view(torch.float16), (words.to(torch.int64) >> 16) & (PANEL - 1)


def rounding(dense: Tensor, sparse: EllpackDib) -> Rounding:
    """What the format made of the matrix it was converted from; waits for the device.

    Raises:
        UsageError: it is another matrix's, or a column did not fit.
    """
    if sparse.shape != tuple(dense.shape):
        raise UsageError(f"expected a matrix of {sparse.shape}, got {tuple(dense.shape)}")
    exact, held = dense.detach().double(), to_dense(sparse, torch.float64)
    finite = exact.isfinite()
    overflowed = finite & ~held.isfinite()
    flushed = (exact != 0) & (held == 0)
    error = torch.where(finite & ~overflowed, (held - exact).abs(), 0.0)
    scales = sparse.scales.double().repeat_interleave(sparse.panel)[: sparse.rows, None]
    normal = exact.abs() >= scales * torch.finfo(torch.float16).smallest_normal
    relative = torch.where(normal & (error > 0), error / exact.abs(), 0.0)
    return Rounding(int(overflowed.sum()), int(flushed.sum()), _largest(relative), _largest(error))


def matmul(a: Tensor, sparse: EllpackDib) -> Tensor:
    """``a (M, rows)`` times the matrix, in the type of ``a``: a sum over slots (Spartan, algorithm 3).

    Raises:
        UsageError: sizes do not fit, or a column did not.
    """
    if a.dim() != 2 or a.shape[1] != sparse.rows:
        raise UsageError(f"a: expected (M, {sparse.rows}), got {tuple(a.shape)}")
    sparse.check()
    c = a.new_zeros(a.shape[0], sparse.columns)
    for p in range(len(sparse.words)):
        for slot in range(sparse.capacity):
            column = (slot < sparse.counts[p]).nonzero().squeeze(1)
            values, row = unpack_words(sparse.words[p, slot, column])
            scaled = (values.double() * sparse.scales[p].double()).to(a.dtype)
            c = c.index_add(1, column, a[:, p * sparse.panel + row] * scaled)
    return c


class _Rounded(torch.autograd.Function):
    """To what the format holds; the gradient passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        scale = fit_scales(x.reshape(-1, 1), max(x.numel(), 1)).to(x.dtype)
        return (x / scale).half().to(x.dtype) * scale

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return tangents[0]


def round_to_format(x: Tensor) -> Tensor:
    """Numbers as the format holds them, under one scale for all; gradients pass as if nothing were rounded."""
    held: Tensor = _Rounded.apply(x)  # type: ignore[no-untyped-call]
    return held


def im2col(x: Tensor, window: Conv2dGeometry) -> Tensor:
    """The matrix that a convolution multiplies: ``(taps * C, N * H' * W')`` of ``x (N, C, H, W)``, tap after tap."""
    kh, kw, sh, sw, ph, pw, dh, dw = window.pack()
    unfolded = F.unfold(x, (kh, kw), (dh, dw), (ph, pw), (sh, sw))  # (N, C * taps, pixels)
    batch, _, pixels = unfolded.shape
    by_tap = unfolded.view(batch, x.shape[1], window.taps, pixels).permute(2, 1, 0, 3)
    return by_tap.reshape(window.taps * x.shape[1], batch * pixels)


def row_union_rows(dense: Tensor, width: int) -> Tensor:
    """For each tile of ``width`` neighbouring columns, whether a row has a non-zero there: bool ``(tiles, rows)``."""
    rows, columns = dense.shape
    padded = F.pad(dense != 0, (0, -columns % width))
    return padded.view(rows, -(-columns // width), width).any(2).mT


def row_union_matmul(a: Tensor, dense: Tensor, width: int) -> Tensor:
    """``a @ dense`` over the rows that each tile of ``width`` columns has non-zeros in; differentiable.

    The gradient of ``dense`` is left out where a whole tile's row is zero: it is for what a ReLU gave.
    """
    parts = [
        a[:, rows] @ columns[rows]
        for rows, columns in zip(row_union_rows(dense, width), dense.split(width, 1), strict=True)
    ]
    return torch.cat(parts, 1) if parts else a.new_zeros(a.shape[0], 0)


def check_matrix(dense: Tensor) -> None:
    """Refuse what is no matrix of floating-point numbers.

    Raises:
        UsageError: naming what was expected.
    """
    if dense.dim() != 2 or not dense.is_floating_point():
        raise UsageError(f"expected a floating-point matrix, got {dense.dtype} of {tuple(dense.shape)}")


def _panels(matrix: Tensor, panel: int) -> Tensor:
    """``(panels, panel, columns)``, the last one padded with zeros; a single panel keeps its height."""
    rows, columns = matrix.shape
    panels = panels_of(rows, panel)
    height = rows if panels == 1 else panel
    return F.pad(matrix, (0, 0, 0, panels * height - rows)).view(panels, height, columns)


def _largest(errors: Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0
