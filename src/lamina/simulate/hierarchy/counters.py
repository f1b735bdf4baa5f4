"""Counters of a run, by index in the counter table and by name."""

from __future__ import annotations

NAMES = (
    "l1_reads",
    "l1_hits",
    "l1_mshr_hits",
    "l1_misses",
    "l1_writes",
    "l1_stall_ticks",
    "tlb1_misses",
    "page_walks",
    "l2_reads",
    "l2_hits",
    "l2_mshr_hits",
    "l2_misses",
    "l2_writes",
    "l2_write_backs",
    "valu_ticks",
    "lds_ticks",
    "l1_latency_ticks",
    "events",
)
(
    L1_READS,
    L1_HITS,
    L1_MSHR_HITS,
    L1_MISSES,
    L1_WRITES,
    L1_STALL,
    TLB1_MISSES,
    WALKS,
    L2_READS,
    L2_HITS,
    L2_MSHR_HITS,
    L2_MISSES,
    L2_WRITES,
    L2_WRITE_BACKS,
    VALU_TICKS,
    LDS_TICKS,
    L1_LATENCY,
    EVENTS,
) = range(len(NAMES))
