"""Counters that are easily misread on Hopper. Each note is given once for all kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from lamina.explain import metrics
from lamina.explain.launches import Launch, mean, total
from lamina.explain.stalls import shares
from lamina.explain.view import BY_NAME, FACT, View
from lamina.explain.wording import names, percent
from lamina.record import Finding, LayerRun

TMA = re.compile(r"sm90_xmma|sm90_\w*tma|warpspecialized|tensor_?map|nvjet|\btma", re.IGNORECASE)
"""Names of kernels that load tiles with the tensor memory accelerator (TMA) of sm_90."""
LOW_HIT_RATE = 10.0
"""L1 hit rate, in percent, below which the cache seems ineffective."""
MIN_STALL = 0.1
"""Smallest fraction of the stall time in ``gmma`` that is reported."""
MISSED = 0.1
"""Fraction of a phase's FLOPs below which the instruction counts do not include tensor core work."""
WORKING = 5.0
"""Tensor core utilization, in percent, from which they are in use."""
MAX_HIT_RATE = 100.0
"""A hit rate above this one counts sectors twice."""


def tma_bypasses_l1(view: View) -> Iterator[Finding]:
    """A meaningless L1 hit rate near 0: TMA loads tiles directly into shared memory."""
    rows, part = [], 0.0
    for row in view.rows:
        mine = [one for one in view.launches[row.key] if _low_hit_rate(one) and _uses_tma(one)]
        if mine:
            rows.append(row)
            part += view.fraction(row, mine)
    if rows:
        claim = (
            f"the L1 hit rate near 0 of {names(rows)} is expected: their kernels load tiles with the tensor memory "
            "accelerator (TMA), which bypasses the hit counters of L1"
        )
        yield view.finding(
            "counters: L1 and TMA", claim, {"share of step": part, "phases": float(len(rows))}, [], BY_NAME
        )


def _uses_tma(one: Launch) -> bool:
    counted = one.counters.get(metrics.TMA_SECTORS)
    return counted > 0 if counted is not None else _has_tma_name(one.kernel.name)


@cache  # a run has few names and many launches
def _has_tma_name(name: str) -> bool:
    return TMA.search(name) is not None


def _low_hit_rate(one: Launch) -> bool:
    return one.counters.get(metrics.L1_HIT, LOW_HIT_RATE) < LOW_HIT_RATE


def tensor_core_flops(view: View) -> Iterator[Finding]:
    """Floating-point instruction counts that do not include tensor cores."""
    rows = [row for row in view.rows if _missed(view, row)]
    if rows:
        claim = (
            f"the floating-point instruction counts of {names(rows)} do not include tensor cores, which do nearly "
            "all the work: use the FLOP counts of the layers"
        )
        yield view.finding("counters: tensor core FLOPs", claim, {"phases": float(len(rows))}, [], FACT)


def _missed(view: View, row: LayerRun) -> bool:
    mine = view.launches[row.key]
    used = mean(mine, metrics.TENSOR)
    counts = [total(mine, metric) for metric in (metrics.FP_ADDS, metrics.FP_MULTIPLIES, metrics.FP_FUSED)]
    if used is None or used < WORKING or None in counts or not row.flops:
        return False
    adds, multiplies, fused = (one or 0.0 for one in counts)
    return adds + multiplies + 2 * fused < MISSED * row.flops


def wgmma_stalls(view: View) -> Iterator[Finding]:
    """The stall reason ``gmma`` of Hopper, which is large in efficient kernels too."""
    found = {row: shares(view.launches[row.key]).get("gmma", 0.0) for row in view.rows}
    rows = [row for row, part in found.items() if part >= MIN_STALL]
    if rows:
        claim = (
            f"warps of {names(rows)} wait for wgmma instructions (stall reason gmma): this is expected while the "
            "tensor cores are busy"
        )
        yield view.finding("counters: gmma", claim, {row.layer + " " + row.phase: found[row] for row in rows}, [], FACT)


def l2_partitions(view: View) -> Iterator[Finding]:
    """L2 hit rates above 100 %, or sectors fetched from the other L2 partition."""
    rows, part, worst = [], 0.0, 0.0
    for row in view.rows:
        mine = [one for one in view.launches[row.key] if _counts_twice(one)]
        if mine:
            rows.append(row)
            part += view.fraction(row, mine)
            worst = max(worst, *(one.counters.get(metrics.L2_HIT, 0.0) for one in mine))
    if rows:
        claim = (
            f"the L2 counters of {names(rows)} count sectors twice ({percent(part)} of the step): a sector of the far "
            "partition is looked up in both; use the sectors that SMs requested instead"
        )
        yield view.finding(
            "counters: L2 partitions", claim, {"share of step": part, "highest hit rate": worst}, [], FACT
        )


def _counts_twice(one: Launch) -> bool:
    return one.counters.get(metrics.L2_HIT, 0.0) > MAX_HIT_RATE or one.counters.get(metrics.L2_FABRIC, 0.0) > 0
