"""What the engine counts, by place in the table of counters and by name."""

from __future__ import annotations

NAMES = (
    "engine_reads",  # marked reads that missed L2
    "engine_latency_ticks",
    "engine_sib_hits",
    "engine_sib_misses",
    "engine_sib_evictions",
    "engine_buffer_hits",
    "engine_buffer_late",  # of these, lines still on their way
    "engine_buffer_full",  # reading ahead stopped for want of space
    "engine_buffer_peak",  # lines
    "engine_buffer_dropped",  # lines read ahead that nobody asked for
    "engine_accurate",  # searches by mode
    "engine_prudent",
    "engine_hasty",
    "engine_direct",
    "engine_steps",
    "engine_rounds",  # that had to see what came before asking for more
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
