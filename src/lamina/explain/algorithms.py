"""Estimated time of convolution algorithms whose stages run at the measured peaks.

The stages are those of the implementations in ``lamina.build.convolution``: each reads what the previous one wrote.
"""

from __future__ import annotations

from math import ceil, isqrt, prod

from lamina.record import LayerRun, Roofs
from lamina.spec import ITEM_BYTES

TILES = (4, 2)
"""Tile sizes m of F(m, 3); the larger one if the output is at least two of its tiles wide."""


def convolution_us(row: LayerRun, roofs: Roofs, algorithm: str, reached: float = 1.0) -> float | None:
    """Microseconds of one phase of an ungrouped two-dimensional convolution by ``gemm``, ``winograd`` or ``fft``.

    ``reached`` is the fraction of the peak GEMM rate that the matrix products reach; all other stages run at the copy
    bandwidth. All phases cost the same: each exchanges the roles of input, output and filters. Returns ``None`` if the
    algorithm does not support the shape or a peak is unknown.

    Sources: Chellapilla 2006 (gemm); Lavin and Gray, CVPR 2016 (winograd); Mathieu, Henaff, LeCun 2014 (fft).
    """
    if row.kind != "convolution" or not row.inputs or len(row.inputs[0]) != 4 or len(row.output) != 4 or not row.flops:
        return None
    batch, channels, height, width = row.inputs[0]
    _, filters, out_height, out_width = row.output
    taps, rest = divmod(row.flops, 2 * prod(row.output) * channels)
    if rest or not taps:
        return None  # grouped or transposed
    images, outputs, weights = prod(row.inputs[0]), prod(row.output), filters * channels * taps
    precision, item = row.precision, ITEM_BYTES.get(row.precision, 4)
    if algorithm == "gemm":
        columns = batch * channels * taps * out_height * out_width
        stages = [(0, images + columns), (row.flops, columns + weights + outputs)]
    elif algorithm == "winograd":
        if taps != 9 or abs(height - out_height) > 2:
            return None
        tile = next((m for m in TILES if out_width >= 2 * m), TILES[-1])
        points = (tile + 2) ** 2
        tiles = points * batch * ceil(out_height / tile) * ceil(out_width / tile)
        product = tiles * (channels + filters) + points * channels * filters
        stages = [
            (0, images + channels * tiles),
            (2 * tiles * channels * filters, product),
            (0, filters * tiles + outputs),
        ]
    elif algorithm == "fft":
        side = isqrt(taps) - 1
        elements = 2 * (height + side) * ((width + side) // 2 + 1)  # real elements of one half spectrum
        spectra = elements * (batch * channels + batch * filters + channels * filters)
        stages = [
            (0, images + weights + elements * channels * (batch + filters)),
            (4 * elements * batch * channels * filters, spectra),
            (0, elements * batch * filters + outputs),
        ]
        precision, item = ("fp32", 4) if item == 2 else (precision, item)
    else:
        return None
    rate = roofs.gemm_gflops.get(precision)
    if rate is None:
        return None
    return sum(max(flops / (rate * reached), moved * item / roofs.copy_gbs) for flops, moved in stages) / 1e3
