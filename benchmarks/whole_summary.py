"""The summary of whole steps: speedups by mode, the best mode of each side, and what is slower than dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.never_slower import LOWEST

Row = Mapping[str, Any]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Dense over converted in the same mode, the host's launch overhead, best modes, and how many rows are slower.

    Names are of a network and a precision; also of a method, if there are several.
    """
    several = len({row["method"] for row in rows}) > 1

    def name(row: Row) -> str:
        return f"{row['workload']} {row['precision']}" + f" {row['method']}" * several

    ours = [row for row in rows if not row["impl"].startswith("dense")]
    found: dict[str, Any] = {
        f"speedup, {mode}": {name(row): round(row["speedup"], 3) for row in ours if row["mode"] == mode}
        for mode in dict.fromkeys(row["mode"] for row in rows)
    }
    overheads: dict[str, list[float]] = {}
    for row in ours:
        overheads.setdefault(name(row), []).append(row["launch_overhead_us"])
    best: dict[str, float] = {}
    dense_mode: dict[str, str] = {}
    our_mode: dict[str, str] = {}
    for one in dict.fromkeys(map(name, ours)):
        dense = _fastest(row for row in rows if name(row) == one and row["impl"] == "dense")
        mine = _fastest(row for row in ours if name(row) == one)
        best[one] = round(dense["median_us"] / mine["median_us"], 3)
        dense_mode[one], our_mode[one] = dense["mode"], mine["mode"]
    return found | {
        "launch overhead, us": {one: round(median(each), 2) for one, each in overheads.items()},
        "speedup, best mode over best dense mode": best,
        "fastest mode, dense": dense_mode,
        "fastest mode, converted": our_mode,
        f"rows below {LOWEST}x": sum(row["speedup"] < LOWEST for row in ours),
    }


def _fastest(rows: Any) -> Row:
    return min(rows, key=lambda row: row["median_us"])
