"""Counters of the engine, by index in the counter table and by name."""

from __future__ import annotations

NAMES = (
    "engine_reads",  # marked reads that missed L2
    "engine_latency_ticks",
    "engine_sib_hits",
    "engine_sib_misses",
    "engine_sib_evictions",
    "engine_buffer_hits",
    "engine_buffer_late",  # of these, lines still in flight
    "engine_buffer_full",  # prefetches stopped because the buffer was full
    "engine_buffer_peak",  # lines
    "engine_buffer_dropped",  # prefetched lines that were never requested
    "engine_accurate",  # searches by mode
    "engine_prudent",
    "engine_hasty",
    "engine_direct",
    "engine_steps",
    "engine_rounds",  # request rounds that depended on earlier data
    "engine_lines",  # of memory
    "engine_values",  # kept of these lines
    "engine_zeros",  # dropped
    "engine_delivered",  # values
    "engine_unit_ticks",
    "engine_search_ticks",
)
(
    READS,
    LATENCY,
    SIB_HITS,
    SIB_MISSES,
    SIB_EVICTIONS,
    BUFFER_HITS,
    BUFFER_LATE,
    BUFFER_FULL,
    BUFFER_PEAK,
    BUFFER_DROPPED,
    ACCURATE,
    PRUDENT,
    HASTY,
    DIRECT,
    STEPS,
    ROUNDS,
    LINES,
    VALUES,
    ZEROS,
    DELIVERED,
    UNIT,
    SEARCH,
) = range(len(NAMES))
