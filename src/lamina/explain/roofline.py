"""The roofline model, with the measured peaks of the machine."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.record import LayerRun, Roofline, Roofs

LAUNCH_FACTOR = 2.0
"""A phase shorter than this many launches is launch-bound."""

UNKNOWN = Roofline(intensity=None, achieved_gflops=None, attainable_gflops=None, bound="unknown", share=None)


def roofline_of(row: LayerRun, roofs: Roofs | None) -> Roofline:
    """Arithmetic intensity, achieved and attainable rate of one phase, and its bound.

    The compute peak is the measured GEMM rate of the row's precision, the memory peak the measured copy bandwidth.
    The attainable rate is the lower of the compute peak and intensity times bandwidth. ``share`` is the achieved
    fraction of it, by operations, or by bytes for a phase without operations. It exceeds 1 if operands stay in the
    cache, or if an algorithm needs fewer operations than the definition. ``bound`` is ``launch`` below
    ``LAUNCH_FACTOR`` launches per kernel (one kernel if the clock cannot count them), and ``unknown`` without time,
    operations, bytes or the peak that is needed.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
    """
    if row.timing is None or row.flops is None or not row.bytes:
        return UNKNOWN
    intensity = row.flops / row.bytes
    if roofs is None:
        return Roofline(intensity, row.gflops, None, "unknown", None)
    short = row.timing.median_us < LAUNCH_FACTOR * roofs.launch_us * (row.timing.kernels or 1)
    if row.flops == 0:
        share = row.gbs / roofs.copy_gbs if row.gbs else None
        return Roofline(intensity, None, None, "launch" if short else "memory", share)
    compute = roofs.gemm_gflops.get(row.precision)
    if compute is None:
        return Roofline(intensity, row.gflops, None, "launch" if short else "unknown", None)
    memory = intensity * roofs.copy_gbs
    attainable = min(compute, memory)
    bound = "launch" if short else "memory" if memory < compute else "compute"
    return Roofline(intensity, row.gflops, attainable, bound, row.gflops / attainable if row.gflops else None)


def attainable_us(row: LayerRun, roofs: Roofs, precision: str = "", size_ratio: float = 1.0) -> float | None:
    """Roofline time of one phase: the larger of its compute time and the time of its compulsory bytes.

    ``precision`` replaces the row's, and ``size_ratio`` is the size of its elements over that of the row's. Returns
    ``None`` without operations, bytes or the peak that is needed.
    """
    if row.bytes is None or row.flops is None:
        return None
    return least_us(row.flops, row.bytes * size_ratio, roofs, precision or row.precision)


def least_us(flops: float, moved: float, roofs: Roofs, precision: str) -> float | None:
    """The larger of the time of ``flops`` and of ``moved`` bytes at the measured peaks; ``None`` without the peak."""
    rate = roofs.gemm_gflops.get(precision)
    if flops and rate is None:
        return None
    return max(flops / rate if rate else 0.0, moved / roofs.copy_gbs) / 1e3


def rooflines(rows: Iterable[LayerRun], roofs: Roofs | None) -> dict[LayerRun, Roofline]:
    """The roofline of every row."""
    return {row: roofline_of(row, roofs) for row in rows}
