"""Gradients that data-parallel training exchanges: section 7.5.4. Bytes are counted; times need two GPUs."""

from __future__ import annotations

from itertools import product
from math import prod

import torch

from lamina import measure
from lamina.pipeline.reproduce import recorded
from lamina.pipeline.reproduce.measured.counted import CIRCULANT
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, NotApplicable, Row, Rows, Scope, fastest
from lamina.spec import ITEM_BYTES
from lamina.spec.published import PublishedValue

BLOCK_SIZES = (16, 32, 64)
RECORDED = "multi_gpu"
"""Rows of ``benchmarks.multi_gpu``, where the package ships them."""
ALLREDUCE = {"workload": "layer A", "layer": "allreduce", "precision": "fp32"}
CIRCULANT_64 = f"circulant[block_size={max(BLOCK_SIZES)}]"


def rows(scope: Scope) -> Rows:
    """Counted bytes, and the all-reduce of layer A's weights: measured on two GPUs, else as recorded."""
    if scope.device.startswith("cuda") and torch.cuda.device_count() > 1:
        return [*counted(), *exchanged()]
    if RECORDED not in recorded.names():
        return counted()
    extract = recorded.recorded(RECORDED)
    return [*counted(), *({**row, "from": recorded.label([extract])} for row in extract.rows)]


def exchanged() -> list[Row]:
    """Times of the all-reduce of layer A's weights between two GPUs, dense and circulant."""
    elements = prod(CIRCULANT["A"]["shape"])
    sizes = [[elements], [elements // max(BLOCK_SIZES)]]
    times = measure.allreduce_times(sizes, torch.float32, torch.device("cuda"), 2)
    impls = ("dense", CIRCULANT_64)
    return [{**ALLREDUCE, "impl": impl, "median_us": one.median_us} for impl, one in zip(impls, times, strict=True)]


def counted() -> list[Row]:
    """A row for each layer of table 7.3 and block size, with the bytes of both gradients in fp32."""
    rows: list[Row] = []
    for (layer, one), k in product(CIRCULANT.items(), BLOCK_SIZES):
        inputs, outputs, *kernel = one["shape"]
        blocks = -(-inputs // k) * -(-outputs // k) * prod(kernel)
        dense = inputs * outputs * prod(kernel)
        item = ITEM_BYTES["fp32"]
        rows.append({"workload": layer, "block_size": k, "dense_bytes": item * dense, "bytes": item * blocks * k})
    return rows


def gradients_are_smaller(rows: Rows) -> Judged:
    """At the largest block size by the factor of the block size."""
    ratios = [row["dense_bytes"] / row["bytes"] for row in rows if row.get("block_size") == max(BLOCK_SIZES)]
    largest = max(row["dense_bytes"] for row in rows if "dense_bytes" in row)
    text = f"{min(ratios):.3g}x fewer bytes at k = {max(BLOCK_SIZES)}, of {largest / 1e6:.0f} MB for layer A"
    return text, min(ratios) >= 0.9 * max(BLOCK_SIZES)


def faster_exchange(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The all-reduce of layer A's weights, dense over circulant.

    Raises:
        NotApplicable: it was not measured.
    """
    try:
        dense, ours = (fastest(rows, impl=impl, **ALLREDUCE) for impl in ("dense", CIRCULANT_64))
    except ValueError as error:
        raise NotApplicable("needs two GPUs: python -m benchmarks.multi_gpu") from error
    (origin,) = {f", {row['from']}" if "from" in row else "" for row in rows if "median_us" in row}
    return dense / ours, f"{dense / ours:.3g} x ({dense:.0f} and {ours:.0f} µs{origin})"


MEASUREMENT = Measurement(
    (),
    values={"speedup": faster_exchange},
    statements={"gradients_are_smaller": gradients_are_smaller},
    run=rows,
)
