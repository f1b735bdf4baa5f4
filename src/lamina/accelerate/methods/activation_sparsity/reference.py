"""The definition: ELLPACK-DIB and products with it in PyTorch's operators, on any device."""

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
    """Powers of two that scale each panel's finite amax just below the largest float16, float32 ``(panels,)``.

    1 for a panel without finite non-zeros, and for float16, which needs no scale.
    """
    if dense.dtype == torch.float16:
        return dense.new_ones(panels_of(len(dense), panel), dtype=torch.float32)
    magnitude = _panels(torch.nan_to_num(dense.detach().abs(), nan=0.0, posinf=0.0), panel).double()
    largest = magnitude.amax((1, 2)) if magnitude.numel() else magnitude.new_zeros(magnitude.shape[0])
    _, exponent = torch.frexp(largest)  # largest = m * 2 ** exponent with 0.5 <= m < 1
    power = (exponent - 1 - TARGET_EXPONENT).clamp(-120, 120)
    return torch.where(largest > 0, torch.exp2(power.double()), 1.0).float()


def from_dense(
    dense: Tensor, *, panel: int = PANEL, capacity: int | None = None, scales: Tensor | None = None
) -> EllpackDib:
    """A matrix ``(rows, columns)`` in the format.

    Args:
        dense: of any strides and floating-point dtype.
        panel: rows of a panel, at most 65,536.
        capacity: slots per column; if omitted, the non-zeros of the fullest column.
        scales: powers of two, one for each panel; if omitted, fitted.

    Raises:
        UsageError: it is not a floating-point matrix, or an argument is out of range.
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
    scaled = values.double()[p, row, column] / scales.double()[p]
    words[p, slots[p, row, column], column] = pack_words(scaled.half(), row)
    return EllpackDib(words, counts, scales, dense.shape[0], panel)


def to_dense(sparse: EllpackDib, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix ``(rows, columns)``, with float16-rounded values.

    Raises:
        UsageError: a column exceeds the capacity.
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
    """Words of float16 values (low 16 bits) and rows below 65,536 (high 16 bits)."""
    high = torch.where(rows < PANEL // 2, rows, rows - PANEL).to(torch.int32)
    low = values.view(torch.int16).to(torch.int32) & (PANEL - 1)
    return (high << 16) | low


def unpack_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """The float16 values and int64 rows of words."""
    values = words.to(torch.int64) & (PANEL - 1)
    signed = torch.where(values < PANEL // 2, values, values - PANEL)
    return signed.to(torch.int16).view(torch.float16), (words.to(torch.int64) >> 16) & (PANEL - 1)


def rounding(dense: Tensor, sparse: EllpackDib) -> Rounding:
    """The rounding errors of the format against the matrix it was converted from; synchronizes.

    Raises:
        UsageError: sizes do not match, or a column exceeds the capacity.
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
        UsageError: sizes do not match, or a column exceeds the capacity.
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
    """Rounds to the values of the format; the gradient is passed through."""

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
    """For each tile of ``width`` adjacent columns, whether a row holds a non-zero: bool ``(tiles, rows)``."""
    rows, columns = dense.shape
    padded = F.pad(dense != 0, (0, -columns % width))
    return padded.view(rows, -(-columns // width), width).any(2).mT


def row_union_matmul(a: Tensor, dense: Tensor, width: int) -> Tensor:
    """``a @ dense`` over the row union of each tile of ``width`` columns; differentiable.

    The gradient of ``dense`` is omitted where a row of a tile is zero: ``dense`` is the output of a ReLU.
    """
    parts = [
        a[:, rows] @ columns[rows]
        for rows, columns in zip(row_union_rows(dense, width), dense.split(width, 1), strict=True)
    ]
    return torch.cat(parts, 1) if parts else a.new_zeros(a.shape[0], 0)


def check_matrix(dense: Tensor) -> None:
    """Check for a floating-point matrix.

    Raises:
        UsageError: naming what was expected.
    """
    if dense.dim() != 2 or not dense.is_floating_point():
        raise UsageError(f"expected a floating-point matrix, got {dense.dtype} of {tuple(dense.shape)}")


def _panels(matrix: Tensor, panel: int) -> Tensor:
    """``(panels, panel, columns)``, the last one padded with zeros; a single panel is not padded."""
    rows, columns = matrix.shape
    panels = panels_of(rows, panel)
    height = rows if panels == 1 else panel
    return F.pad(matrix, (0, 0, 0, panels * height - rows)).view(panels, height, columns)


def _largest(errors: Tensor) -> float:
    return float(errors.max()) if errors.numel() else 0.0
