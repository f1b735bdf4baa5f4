"""Sums over rows whose channels are contiguous, also of gradients behind ReLU, in two launches.

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
    x, relu, masked, out, rows, channels, stride, relu_stride, masked_stride, rows_per_program,
    RELU: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr,
    INDEX: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums of ranges of ``rows_per_program`` rows of ``x``, ``stride`` elements apart, to ``out [ranges, channels]``.

    ``rows_per_program`` is a multiple of ``BLOCK_M``. With ``RELU``, ``x`` are gradients of the output ``relu``: those
    of its input are written to ``masked``, and summed.
    """
    griddepcontrol(PDL)
    tiles = tl.cdiv(channels, BLOCK_N)
    part = tl.program_id(0) // tiles
    channel = tl.program_id(0) % tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first = part * rows_per_program
    for start in tl.range(first, tl.minimum(first + rows_per_program, rows), BLOCK_M, num_stages=STAGES):
        row = start + tl.arange(0, BLOCK_M)
        mask = (row < rows)[:, None] & (channel < channels)[None, :]
        values = tl.load(x + row.to(INDEX)[:, None] * stride + channel[None, :], mask, 0.0)
        if RELU:
            outputs = tl.load(relu + row.to(INDEX)[:, None] * relu_stride + channel[None, :], mask, 0.0)
            values = tl.where(outputs.to(tl.float32) <= 0, 0.0, values.to(tl.float32)).to(values.dtype)
            tl.store(masked + row.to(INDEX)[:, None] * masked_stride + channel[None, :], values, mask)
        sums += values.to(tl.float32)
    stored = rounded(tl.sum(sums, 0), out.dtype.element_ty, UPCAST)
    tl.store(out + part.to(INDEX) * channels + channel, stored, channel < channels)


def channel_sums_cost(rows: int, channels: int, io_bytes: int, relu: bool = False) -> Cost:
    """An addition per element, and with ``relu`` a comparison; partial sums are not counted."""
    elements = rows * channels
    return Cost((1 + relu) * elements, (1 + relu) * elements * io_bytes, (channels + relu * elements) * io_bytes)
