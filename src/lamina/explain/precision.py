"""Estimated time of a phase in another precision."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.explain.bounds import limiter
from lamina.explain.launches import Launch, total_us
from lamina.record import LayerRun, Roofs
from lamina.spec import ITEM_BYTES

MATRIX_KINDS = ("convolution", "linear", "attention", "lstm")
"""Layer kinds that are matrix products: bytes alone do not determine how their time scales."""


def in_precision(row: LayerRun, launches: Sequence[Launch], roofs: Roofs, precision: str) -> float | None:
    """A row's estimated time in another precision; ``None`` if it has matrix kernels and its roofline is unknown."""
    if row.timing is None:
        return None
    if not row.timing.median_us:
        return 0.0  # no kernel ran
    size_ratio = ITEM_BYTES[precision] / ITEM_BYTES[row.precision]
    ratio = _ratio(row, roofs, precision, size_ratio)
    if not total_us(launches):
        # Without counts, time follows bytes only for layers with few operations.
        ratio = size_ratio if ratio is None and row.kind not in MATRIX_KINDS else ratio
        return row.timing.median_us * ratio if ratio is not None else None
    if ratio is None and any(one.kind == "matrix" for one in launches):
        return None
    scaled = 0.0
    for one in launches:
        if one.kind == "matrix" and ratio is not None:
            factor = ratio
        else:
            factor = 1.0 if limiter(one, roofs) in ("compute", "latency") else size_ratio
        scaled += max(one.us * factor, min(one.us, roofs.launch_us))
    return row.timing.median_us * scaled / total_us(launches)


def _ratio(row: LayerRun, roofs: Roofs, precision: str, size_ratio: float) -> float | None:
    """Scale factor of a matrix kernel's time; ``None`` without the counts or the measured peaks.

    A kernel far below a high roofline does not slow down in proportion to a lower one: it only has to stay below it.
    """
    now, then = _serial_us(row, roofs), _serial_us(row, roofs, precision, size_ratio)
    if not now or then is None or row.timing is None:
        return None
    return then / now if then < now else max(then / row.timing.median_us, 1.0)


def _serial_us(row: LayerRun, roofs: Roofs, precision: str = "", size_ratio: float = 1.0) -> float | None:
    rate = roofs.gemm_gflops.get(precision or row.precision)
    if row.flops is None or row.bytes is None or rate is None:
        return None
    return (row.flops / rate + row.bytes * size_ratio / roofs.copy_gbs) / 1e3
