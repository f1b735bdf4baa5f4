"""DRAM traffic beyond the compulsory bytes, and temporary memory of a phase."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain import metrics
from lamina.explain.launches import mean, total
from lamina.explain.view import FACT, MODEL, SAVING, View
from lamina.explain.wording import megabytes, name
from lamina.record import Finding, LayerRun

AMPLIFIED = 2.0
"""Least ratio of DRAM traffic to compulsory bytes; a layout conversion before and after stays below it."""
USED = 40.0
"""DRAM throughput, in percent of peak, below which less traffic would not save time."""
WORKSPACE = 0.2
"""Fraction of the step's peak memory that one phase may allocate temporarily."""


def excess_traffic(view: View) -> Iterator[Finding]:
    """Significant phases whose DRAM traffic is far above the size of their tensors."""
    for row in filter(view.matters, view.rows):
        mine = view.launches[row.key]
        moved, used = dram_bytes(view, row), mean(mine, metrics.DRAM)
        if moved is None or used is None or not row.bytes or used < USED or moved < AMPLIFIED * row.bytes:
            continue
        times = moved / row.bytes
        claim = (
            f"{name(row)} has {megabytes(moved)} of DRAM traffic for {megabytes(row.bytes)} of operands and results "
            f"({times:.1f} times): fuse its kernels, or keep intermediate results in L2"
        )
        evidence = {
            "dram bytes": moved,
            "compulsory bytes": float(row.bytes),
            "amplification": times,
            "L1 hit rate": mean(mine, metrics.L1_HIT),
            "L2 hit rate": mean(mine, metrics.L2_HIT),
            "dram": used,
            SAVING: view.share[row] * (1 - 1 / times),
        }
        yield view.finding("excess DRAM traffic", claim, evidence, [row], MODEL, row)


def dram_bytes(view: View, row: LayerRun) -> float | None:
    """DRAM bytes of a phase's kernels, from sector counts or from transfer rates."""
    mine = view.launches[row.key]
    counts = [total(mine, metric) for metric in (metrics.DRAM_READS, metrics.DRAM_WRITES)]
    if None not in counts:
        return metrics.SECTOR * sum(one or 0.0 for one in counts)
    rates = [mean(mine, metric) for metric in (metrics.DRAM_READ_RATE, metrics.DRAM_WRITE_RATE)]
    if None in rates:
        return None
    return sum(rate or 0.0 for rate in rates) * sum(one.us for one in mine) / 1e6


def workspace(view: View) -> Iterator[Finding]:
    """The phase with the step's peak memory, if much of it is temporary."""
    known = [row for row in view.rows if row.peak_bytes and row.live_bytes is not None]
    if len(known) < 2:
        return
    top = max(known, key=lambda row: row.peak_bytes or 0)
    peak, live = top.peak_bytes or 0, top.live_bytes or 0
    rest = max(live, *(row.peak_bytes or 0 for row in known if row is not top))
    if peak - live < WORKSPACE * peak:
        return
    claim = (
        f"the step's peak memory is {megabytes(peak)} in {name(top)}, of which {megabytes(peak - live)} are "
        f"temporary: without them the peak would be {megabytes(rest)}"
    )
    evidence = {"peak bytes": float(peak), "live bytes": float(live), "next peak bytes": float(rest)}
    yield view.finding("workspace", claim, evidence, [], FACT, top)
