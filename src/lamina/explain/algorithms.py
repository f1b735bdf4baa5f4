"""What convolution algorithms would take if their stages ran at the roofs.

The stages are those of the plain forms in ``lamina.build.convolution``: what one writes, the next one reads.
"""

from __future__ import annotations

from math import ceil, isqrt, prod

from lamina.record import LayerRun, Roofs
from lamina.spec import ITEM_BYTES

TILES = (4, 2)
"""Outputs of F(m, 3) along each side; the larger where the output is at least two of its tiles wide."""


def convolution_us(row: LayerRun, roofs: Roofs, algorithm: str, reached: float = 1.0) -> float | None:
    """Microseconds of one phase of an ungrouped two-dimensional convolution by ``gemm``, ``winograd`` or ``fft``.

    ``reached`` is the part of the compute roof that their products reach; all else runs at the copy roof. All phases
    cost the same: each exchanges the roles of input, output and filters. ``None`` where the algorithm
    is not made for the shape, or a roof is unknown.

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
        numbers = 2 * (height + side) * ((width + side) // 2 + 1)  # a complex one is two
        spectra = numbers * (batch * channels + batch * filters + channels * filters)
        stages = [
            (0, images + weights + numbers * channels * (batch + filters)),
            (4 * numbers * batch * channels * filters, spectra),
            (0, numbers * batch * filters + outputs),
        ]
        precision, item = ("fp32", 4) if item == 2 else (precision, item)
    else:
        return None
    rate = roofs.gemm_gflops.get(precision)
    if rate is None:
        return None
    return sum(max(flops / (rate * reached), elements * item / roofs.copy_gbs) for flops, elements in stages) / 1e3
