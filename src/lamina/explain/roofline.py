"""Where a measured phase stands under the roofs of its machine."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.record import LayerRun, Roofline, Roofs

LAUNCH_FACTOR = 2.0
"""A phase that takes less than this many launches is bound by launching: most of its time is not work."""

UNKNOWN = Roofline(intensity=None, achieved_gflops=None, attainable_gflops=None, bound="unknown", share=None)


def place(row: LayerRun, roofs: Roofs | None) -> Roofline:
    """Intensity, achieved and attainable rate of one phase, and which roof it is under.

    The compute roof is the measured GEMM rate of the row's precision, the memory roof the measured copy
    bandwidth; attainable is the lower of the compute roof and intensity times bandwidth. ``share`` goes by
    operations, or by bytes for a phase without operations. It exceeds 1 where the roof does not hold:
    operands that stay in the cache, or an algorithm with fewer operations than the definition. ``bound`` is
    ``launch`` below ``LAUNCH_FACTOR`` times the launches of its kernels (of one, where the clock cannot
    count them), and ``unknown`` without time, operations, bytes or the roof that is needed.

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


def attainable_us(row: LayerRun, roofs: Roofs, precision: str = "", shrunk: float = 1.0) -> float | None:
    """The least time of one phase under the roofs: the longer of its operations and its compulsory bytes.

    ``precision`` is another one than the row's, and ``shrunk`` how much smaller its elements are. ``None``
    without operations, bytes or the roof that is needed.
    """
    rate = roofs.gemm_gflops.get(precision or row.precision)
    if row.bytes is None or row.flops is None or (row.flops and rate is None):
        return None
    return max(row.flops / rate if rate else 0.0, row.bytes * shrunk / roofs.copy_gbs) / 1e3


def rooflines(rows: Iterable[LayerRun], roofs: Roofs | None) -> dict[LayerRun, Roofline]:
    """Every row's place under the roofs."""
    return {row: place(row, roofs) for row in rows}
