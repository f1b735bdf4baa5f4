"""Analysis of recorded runs: bottlenecks, findings, rooflines, comparisons. Pure functions; no GPU and no drawing."""

import warnings
from typing import Any

from lamina.explain.bounds import Bound
from lamina.explain.comparison import compare, overall, per_item, regressions
from lamina.explain.counter_comparison import CounterComparison, compare_counters
from lamina.explain.findings import bounds, findings
from lamina.explain.headlines import headlines
from lamina.explain.kernel_comparison import KernelComparison, compare_kernels
from lamina.explain.paragraphs import Paragraph, paragraphs
from lamina.explain.roofline import roofline_of, rooflines
from lamina.explain.steps import LayerStep, NetworkStep, phase_totals, shares, steps
from lamina.explain.view import potential_saving

__all__ = [
    "Bound",
    "CounterComparison",
    "KernelComparison",
    "LayerStep",
    "NetworkStep",
    "Paragraph",
    "bounds",
    "compare",
    "compare_counters",
    "compare_kernels",
    "findings",
    "headlines",
    "overall",
    "paragraphs",
    "per_item",
    "phase_totals",
    "potential_saving",
    "regressions",
    "roofline_of",
    "rooflines",
    "shares",
    "steps",
]

_RENAMED = {"place": roofline_of, "stake": potential_saving}
"""Names of version 0.1."""


def __getattr__(name: str) -> Any:
    if new := _RENAMED.get(name):
        warnings.warn(f"lamina.explain.{name} is now {new.__name__}", DeprecationWarning, stacklevel=2)
        return new
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
