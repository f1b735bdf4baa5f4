"""Sums over rows whose channels are contiguous, in two launches.

Each program adds a range of rows of some channels in float32. A second launch of the same kernel adds these partial
sums in order, so that results are deterministic.
"""

from typing import no_type_check

import triton
import triton.language as tl

from lamina.accelerate.runtime.triton_utils import griddepcontrol, rounded
from lamina.spec import Cost


@triton.jit
@no_type_check
def channel_sums_kernel(
    x, out, rows, channels, stride, rows_per_program,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UPCAST: tl.constexpr, INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums of ranges of ``rows_per_program`` rows of ``x``, ``stride`` elements apart, to ``out [ranges, channels]``.

    ``rows_per_program`` is a multiple of ``BLOCK_M``.
    """
    griddepcontrol(PDL)
    tiles = tl.cdiv(channels, BLOCK_N)
    part = tl.program_id(0) // tiles
    channel = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first = part * rows_per_program
    for start in range(first, tl.minimum(first + rows_per_program, rows), BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        mask = (row < rows)[:, None] & (channel < channels)[None, :]
        sums += tl.load(x + row.to(INDEX)[:, None] * stride + channel[None, :], mask, 0.0).to(tl.float32)
    stored = rounded(tl.sum(sums, 0), out.dtype.element_ty, UPCAST)
    tl.store(out + part.to(INDEX) * channels + channel, stored, channel < channels)


def channel_sums_cost(rows: int, channels: int, io_bytes: int) -> Cost:
    """An addition per element; partial sums are not counted."""
    return Cost(rows * channels, rows * channels * io_bytes, channels * io_bytes)
