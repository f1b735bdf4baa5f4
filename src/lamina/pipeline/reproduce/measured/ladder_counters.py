"""Statements about counters of the paper's kernels: table 7.5 and figures 7.8 to 7.11.

The four versions are the algorithm as written and three optimizations. Counts are sums over forward and both gradients,
rates means weighted by time; kernels of libraries, transforms above all, are not included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rule, share

BASELINE = "as_written"
OPTIMIZED = ("o1_sum", "o2_sum", "fusion")
EVERY = (BASELINE, *OPTIMIZED)
CASES = "layers and block sizes"
_RATES = ("ipc", "eligible_warps", "occupancy_pct")

Version = Mapping[str, float]
Case = Mapping[str, Version]
"""The versions of a layer at a block size, by rung."""


def cases(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    """Counters by layer and block size, then by rung."""
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["kernels"] != "own" or row["rung"] not in EVERY:
            continue
        mine = found.setdefault((row["layer"], row["block_size"]), {}).setdefault(row["rung"], {})
        for name in ("time_us", "instructions", "read_sectors", "written_sectors", "static_instructions"):
            mine[name] = mine.get(name, 0.0) + row[name]
        for name in _RATES:
            mine[name] = mine.get(name, 0.0) + row[name] * row["time_us"]
    for versions in found.values():
        for mine in versions.values():
            for name in _RATES:
                mine[name] /= mine["time_us"]
            mine["ratio"] = mine["static_instructions"] / mine["instructions"]
            mine["sectors"] = mine["read_sectors"] + mine["written_sectors"]
    return found


def each(holds: Callable[[Case], bool], *block_sizes: int) -> Rule:
    """A rule about every layer and block size, or about some block sizes."""

    def rule(rows: Sequence[Mapping[str, Any]]) -> Judged:
        known = cases(rows)
        return share(CASES, (holds(case) for (_, k), case in known.items() if not block_sizes or k in block_sizes))

    return rule


def extreme(which: Callable[..., float], rung: str, name: str, among: Sequence[str] = EVERY, *block_sizes: int) -> Rule:
    """A rule that one version has the minimum or maximum of a counter."""
    return each(lambda case: case[rung][name] == which(case[one][name] for one in among), *block_sizes)


def more(rung: str, than: str, name: str) -> Rule:
    return each(lambda case: case[rung][name] > case[than][name])


def above_baseline(name: str, *block_sizes: int) -> Rule:
    return each(lambda case: min(case[one][name] for one in OPTIMIZED) > case[BASELINE][name], *block_sizes)


def larger_blocks_move_less(rows: Sequence[Mapping[str, Any]]) -> Judged:
    known = cases(rows)
    moved = {
        (layer, rung): [known[layer, k][rung]["sectors"] for k in sorted(k for name, k in known if name == layer)]
        for layer, _ in known
        for rung in EVERY
    }
    return share("layers and versions", (sizes == sorted(sizes, reverse=True) for sizes in moved.values()))


def o2_occupies_more_at_64(rows: Sequence[Mapping[str, Any]]) -> Judged:
    known = cases(rows)
    layers = dict.fromkeys(layer for layer, _ in known)
    occupied = {layer: [known[layer, k]["o2_sum"]["occupancy_pct"] for k in (32, 64)] for layer in layers}
    return share("layers", (at_64 > at_32 for at_32, at_64 in occupied.values()))


RULES: Mapping[str, Rule] = {
    "fusion_has_the_largest_ratio": extreme(max, "fusion", "ratio"),
    "o1_has_a_larger_ratio_than_o2": more("o1_sum", "o2_sum", "ratio"),
    "optimizations_issue_more": above_baseline("ipc"),
    "o2_has_the_fewest_eligible_warps": extreme(min, "o2_sum", "eligible_warps", OPTIMIZED),
    "the_baseline_is_short": extreme(min, BASELINE, "static_instructions"),
    "the_baseline_executes_most": extreme(max, BASELINE, "instructions"),
    "o1_is_longer_than_o2": more("o1_sum", "o2_sum", "static_instructions"),
    "o1_executes_more_than_o2": more("o1_sum", "o2_sum", "instructions"),
    "fusion_reads_least": extreme(min, "fusion", "read_sectors"),
    "fusion_writes_least": extreme(min, "fusion", "written_sectors"),
    "larger_blocks_move_less": larger_blocks_move_less,
    "optimizations_occupy_more": above_baseline("occupancy_pct", 16, 32),
    "fusion_occupies_least_at_64": extreme(min, "fusion", "occupancy_pct", EVERY, 64),
    "o2_occupies_more_at_64": o2_occupies_more_at_64,
}
"""All rules, by their names in entries."""

MEASUREMENT = Measurement(
    ("circulant_counters",),
    statements=RULES,
    run=live("ladder_counters", "counts"),
    needs_gpu=True,
    command="python -m benchmarks.ladder.circulant",
)
