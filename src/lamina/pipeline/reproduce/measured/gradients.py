"""Bytes of gradients that data-parallel training exchanges: section 7.5.4, counted."""

from __future__ import annotations

from itertools import product
from math import prod

from lamina.pipeline.reproduce.measured.counted import CIRCULANT
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows, Scope
from lamina.spec import ITEM_BYTES

BLOCK_SIZES = (16, 32, 64)


def counted(scope: Scope) -> Rows:
    """A row for each layer of table 7.3 and block size, with the bytes of both gradients in fp32."""
    rows = []
    for (layer, one), k in product(CIRCULANT.items(), BLOCK_SIZES):
        inputs, outputs, *kernel = one["shape"]
        blocks = -(-inputs // k) * -(-outputs // k) * prod(kernel)
        dense = inputs * outputs * prod(kernel)
        item = ITEM_BYTES["fp32"]
        rows.append({"workload": layer, "block_size": k, "dense_bytes": item * dense, "bytes": item * blocks * k})
    return rows


def gradients_are_smaller(rows: Rows) -> Judged:
    """At the largest block size by the factor of the block size."""
    ratios = [row["dense_bytes"] / row["bytes"] for row in rows if row["block_size"] == max(BLOCK_SIZES)]
    largest = max(row["dense_bytes"] for row in rows)
    text = f"{min(ratios):.3g}x fewer bytes at k = {max(BLOCK_SIZES)}, of {largest / 1e6:.0f} MB for layer A"
    return text, min(ratios) >= 0.9 * max(BLOCK_SIZES)


MEASUREMENT = Measurement((), statements={"gradients_are_smaller": gradients_are_smaller}, run=counted)
