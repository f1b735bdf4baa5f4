"""How a phase's time scales when its numbers get another precision."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.explain.bounds import limit
from lamina.explain.launches import Launch, total_us
from lamina.record import LayerRun, Roofs
from lamina.spec import ITEM_BYTES

MATRIX_KINDS = ("convolution", "linear", "attention", "lstm")
"""Kinds that are matrix products: their bytes alone do not tell how they scale."""


def in_precision(row: LayerRun, launches: Sequence[Launch], roofs: Roofs, precision: str) -> float | None:
    """A row's time in another precision; ``None`` where it has matrix kernels and its roofline is unknown."""
    if row.timing is None:
        return None
    shrunk = ITEM_BYTES[precision] / ITEM_BYTES[row.precision]
    ratio = _ratio(row, roofs, precision, shrunk)
    if not total_us(launches):
        # An unknown count is as good as bytes only where there are no operations to speak of.
        ratio = shrunk if ratio is None and row.kind not in MATRIX_KINDS else ratio
        return row.timing.median_us * ratio if ratio is not None else None
    if ratio is None and any(one.kind == "matrix" for one in launches):
        return None
    scaled = 0.0
    for one in launches:
        if one.kind == "matrix" and ratio is not None:
            factor = ratio
        else:
            factor = 1.0 if limit(one, roofs) in ("compute", "latency") else shrunk
        scaled += max(one.us * factor, min(one.us, roofs.launch_us))
    return row.timing.median_us * scaled / total_us(launches)


def _ratio(row: LayerRun, roofs: Roofs, precision: str, shrunk: float) -> float | None:
    """How a matrix kernel's time scales; ``None`` without the counts or the roofs.

    A kernel far below a fast roof is not slowed in proportion by a slower one: it only has to stay below that.
    """
    now, then = _one_after_another_us(row, roofs), _one_after_another_us(row, roofs, precision, shrunk)
    if not now or then is None or row.timing is None:
        return None
    return then / now if then < now else max(then / row.timing.median_us, 1.0)


def _one_after_another_us(row: LayerRun, roofs: Roofs, precision: str = "", shrunk: float = 1.0) -> float | None:
    rate = roofs.gemm_gflops.get(precision or row.precision)
    if row.flops is None or row.bytes is None or rate is None:
        return None
    return (row.flops / rate + row.bytes * shrunk / roofs.copy_gbs) / 1e3
