"""Comparison of the hardware counters of two runs, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lamina.explain.comparison import compare
from lamina.explain.launches import Launches, mean, total
from lamina.record import Counter, KernelRun, LayerRun

COUNTED = (".sum",)
"""Suffix of metrics that are summed over kernels; all others are rates, averages or percentages."""


@dataclass(frozen=True)
class CounterComparison:
    """One metric of one phase in run ``a`` and in run ``b``; ``None`` where it was not collected.

    Counts are summed over the phase's kernels; other metrics are averaged, weighted by kernel time.
    """

    layer: str
    phase: str
    metric: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """``b`` over ``a``."""
        return self.b / self.a if self.a and self.b is not None else None


def compare_counters(
    a_rows: Sequence[LayerRun],
    a_kernels: Iterable[KernelRun],
    a_counters: Sequence[Counter],
    b_rows: Sequence[LayerRun],
    b_kernels: Iterable[KernelRun],
    b_counters: Sequence[Counter],
    metrics: Sequence[str] = (),
    per_item: bool = False,
) -> tuple[CounterComparison, ...]:
    """Pair the rows as ``compare`` does, and compare each metric that either run collected.

    Args:
        metrics: the metrics to compare, in this order; all, sorted by name, if empty.
        per_item: divide counts by the batch size.

    Raises:
        UsageError: a run has the same row twice.
    """
    ours, theirs = Launches(a_kernels, a_counters), Launches(b_kernels, b_counters)
    units = {one.metric: one.unit for one in (*b_counters, *a_counters)}
    made = []
    for pair in compare(a_rows, b_rows):
        for metric in metrics or sorted(units):
            a = _value(pair.a, ours, metric, per_item)
            b = _value(pair.b, theirs, metric, per_item)
            if a is not None or b is not None:
                made.append(CounterComparison(pair.layer, pair.phase, metric, units.get(metric, ""), a, b))
    return tuple(made)


def _value(row: LayerRun | None, launches: Launches, metric: str, per_item: bool) -> float | None:
    if row is None:
        return None
    if not metric.endswith(COUNTED):
        return mean(launches[row.key], metric)
    counted = total(launches[row.key], metric)
    return counted / row.batch if counted is not None and per_item else counted
