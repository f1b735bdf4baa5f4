"""Speedup of block-circulant layers by batch size, as in figure 7.6."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Rows, Rule, share


def speedups(rows: Rows, precision: str) -> dict[tuple[str, int], dict[int, float]]:
    """Speedups of each layer and block size over dense, by batch size, each side in its better layout."""
    best: dict[tuple[str, int, int], float] = {}
    for row in rows:
        if row["precision"] == precision:
            key = row["layer"], row["block_size"], row["batch"]
            best[key] = min(best.get(key, float("inf")), row["median_us"])
    found: dict[tuple[str, int], dict[int, float]] = {}
    for layer, block_size, batch in sorted(best):
        if block_size and (layer, 0, batch) in best:
            ratio = best[layer, 0, batch] / best[layer, block_size, batch]
            found.setdefault((layer, block_size), {})[batch] = round(ratio, 2)
    return found


def larger_batches_gain_more(rows: Rows) -> Judged:
    """The largest batch gains more than the smallest."""
    known = speedups(rows, "fp32").values()
    return share("layers and block sizes", (by[max(by)] > by[min(by)] for by in known if len(by) > 1))


def the_trend_fades(rows: Rows) -> Judged:
    """The last doubling of the batch gains less than the first, as a factor of the speedup."""
    courses = [[by[batch] for batch in sorted(by)] for by in speedups(rows, "fp32").values() if len(by) > 2]
    return share("layers and block sizes", (by[-1] / by[-2] < by[1] / by[0] for by in courses))


RULES: Mapping[str, Rule] = {
    "larger_batches_gain_more": larger_batches_gain_more,
    "the_trend_fades": the_trend_fades,
}
"""The statements about figure 7.6, by the names of the entries."""
MEASUREMENT = Measurement(
    ("circulant_batches",),
    statements=RULES,
    run=live("circulant", "by_batch"),
    command="python -m benchmarks.circulant_batches",
)
