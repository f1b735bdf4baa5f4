"""What moves through the caches and DRAM beyond need, and what memory a phase takes for itself."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.explain import metrics
from lamina.explain.launches import mean, total
from lamina.explain.view import FACT, MODEL, STAKE, View
from lamina.explain.wording import megabytes, name
from lamina.record import Finding, LayerRun

AMPLIFIED = 2.0
"""How much more than the compulsory bytes DRAM must move: a conversion before and after is below it."""
USED = 40.0
"""Percent of DRAM's peak below which moving less would not be felt."""
WORKSPACE = 0.2
"""Part of the step's peak memory that one phase may take beside its tensors."""


def traffic(view: View) -> Iterator[Finding]:
    """Phases that matter and move much more through DRAM than their tensors hold."""
    for row in filter(view.matters, view.rows):
        mine = view.launches[row.key]
        moved, used = dram_bytes(view, row), mean(mine, metrics.DRAM)
        if moved is None or used is None or not row.bytes or used < USED or moved < AMPLIFIED * row.bytes:
            continue
        times = moved / row.bytes
        claim = (
            f"{name(row)} moves {megabytes(moved)} through DRAM for {megabytes(row.bytes)} of operands and results "
            f"({times:.1f} times): fuse its kernels, or let them find each other's results in the cache"
        )
        evidence = {
            "dram bytes": moved,
            "compulsory bytes": float(row.bytes),
            "amplification": times,
            "L1 hit rate": mean(mine, metrics.L1_HIT),
            "L2 hit rate": mean(mine, metrics.L2_HIT),
            "dram": used,
            STAKE: view.share[row] * (1 - 1 / times),
        }
        yield view.finding("traffic", claim, evidence, [row], MODEL, row)


def dram_bytes(view: View, row: LayerRun) -> float | None:
    """Bytes that a phase's kernels moved through DRAM, by count or by rate."""
    mine = view.launches[row.key]
    counts = [total(mine, metric) for metric in (metrics.DRAM_READS, metrics.DRAM_WRITES)]
    if None not in counts:
        return metrics.SECTOR * sum(one or 0.0 for one in counts)
    rates = [mean(mine, metric) for metric in (metrics.DRAM_READ_RATE, metrics.DRAM_WRITE_RATE)]
    if None in rates:
        return None
    return sum(rate or 0.0 for rate in rates) * sum(one.us for one in mine) / 1e6


def workspace(view: View) -> Iterator[Finding]:
    """The phase at the step's peak memory, where it takes much for itself."""
    known = [row for row in view.rows if row.peak_bytes and row.live_bytes is not None]
    if len(known) < 2:
        return
    top = max(known, key=lambda row: row.peak_bytes or 0)
    peak, live = top.peak_bytes or 0, top.live_bytes or 0
    rest = max(live, *(row.peak_bytes or 0 for row in known if row is not top))
    if peak - live < WORKSPACE * peak:
        return
    claim = (
        f"the step's memory peaks at {megabytes(peak)} in {name(top)}, of which {megabytes(peak - live)} are "
        f"gone when it ends: without them the peak would be {megabytes(rest)}"
    )
    evidence = {"peak bytes": float(peak), "live bytes": float(live), "next peak bytes": float(rest)}
    yield view.finding("workspace", claim, evidence, [], FACT, top)
