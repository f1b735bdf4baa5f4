"""Counters that mislead on Hopper: said once for all kernels, before somebody acts on them."""

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
"""Names of kernels that load tiles with the tensor memory accelerator of sm_90."""
NOTHING = 10.0
"""Percent of hits in L1 that looks like a cache that does not work."""
WAITING = 0.1
"""Part of the waiting from which the wait for a warpgroup's product is worth a word."""
MISSED = 0.1
"""Part of a phase's operations below which instruction counts have evidently missed the others."""
WORKING = 5.0
"""Percent of their peak from which tensor cores do work."""
ALL = 100.0
"""More hits than this cannot be."""


def tma_goes_past_l1(view: View) -> Iterator[Finding]:
    """An L1 hit rate near 0 that says nothing, since tiles go straight to shared memory."""
    rows, part = [], 0.0
    for row in view.rows:
        mine = [one for one in view.launches[row.key] if _low_hits(one) and _by_tma(one)]
        if mine:
            rows.append(row)
            part += view.part(row, mine)
    if rows:
        claim = (
            f"the L1 hit rate near 0 of {names(rows)} is no fault: their kernels load tiles with the tensor memory "
            "accelerator, which goes past L1's hit counters into shared memory"
        )
        yield view.finding("trap: L1 and TMA", claim, {"share of step": part, "phases": float(len(rows))}, [], BY_NAME)


def _by_tma(one: Launch) -> bool:
    counted = one.counters.get(metrics.TMA_SECTORS)
    return counted > 0 if counted is not None else _named_so(one.kernel.name)


@cache  # a run has few names and many launches
def _named_so(name: str) -> bool:
    return TMA.search(name) is not None


def _low_hits(one: Launch) -> bool:
    return one.counters.get(metrics.L1_HIT, NOTHING) < NOTHING


def tensor_work_is_not_counted(view: View) -> Iterator[Finding]:
    """Instruction counts that miss what the tensor cores compute."""
    rows = [row for row in view.rows if _missed(view, row)]
    if rows:
        claim = (
            f"the counts of floating-point instructions of {names(rows)} leave out the tensor cores, which do nearly "
            "all the work there: use the layers' operation counts"
        )
        yield view.finding("trap: tensor FLOPs", claim, {"phases": float(len(rows))}, [], FACT)


def _missed(view: View, row: LayerRun) -> bool:
    mine = view.launches[row.key]
    used = mean(mine, metrics.TENSOR)
    counts = [total(mine, metric) for metric in (metrics.FP_ADDS, metrics.FP_MULTIPLIES, metrics.FP_FUSED)]
    if used is None or used < WORKING or None in counts or not row.flops:
        return False
    adds, multiplies, fused = (one or 0.0 for one in counts)
    return adds + multiplies + 2 * fused < MISSED * row.flops


def waiting_for_a_warpgroup(view: View) -> Iterator[Finding]:
    """A stall that older GPUs do not have: large where all is well."""
    found = {row: shares(view.launches[row.key]).get("gmma", 0.0) for row in view.rows}
    rows = [row for row, part in found.items() if part >= WAITING]
    if rows:
        claim = (
            f"warps of {names(rows)} wait for their warpgroup's matrix product (gmma): the tensor cores are at work, "
            "so it is a fault only where these are not busy"
        )
        yield view.finding("trap: gmma", claim, {row.layer + " " + row.phase: found[row] for row in rows}, [], FACT)


def l2_counts_twice(view: View) -> Iterator[Finding]:
    """L2 hit rates above 100 %, or sectors fetched from the other partition."""
    rows, part, worst = [], 0.0, 0.0
    for row in view.rows:
        mine = [one for one in view.launches[row.key] if _twice(one)]
        if mine:
            rows.append(row)
            part += view.part(row, mine)
            worst = max(worst, *(one.counters.get(metrics.L2_HIT, 0.0) for one in mine))
    if rows:
        claim = (
            f"L2 counts of {names(rows)} hold sectors twice ({percent(part)} of the step): one that comes from the far "
            "partition is looked up in both; count what the multiprocessors asked for instead"
        )
        yield view.finding("trap: L2 partitions", claim, {"share of step": part, "highest hit rate": worst}, [], FACT)


def _twice(one: Launch) -> bool:
    return one.counters.get(metrics.L2_HIT, 0.0) > ALL or one.counters.get(metrics.L2_FABRIC, 0.0) > 0
