"""Hardware counters of each kernel, collected with Nsight Compute."""

from lamina.measure.counters.derived import DERIVED, derived
from lamina.measure.counters.join import Mismatch, join
from lamina.measure.counters.ncu import Caches, Session, profile, refusal
from lamina.measure.counters.parse import Profiled, parse
from lamina.spec.counters import LAUNCH, METRICS, SETS, Metric, metric, passes, select

__all__ = [
    "DERIVED",
    "LAUNCH",
    "METRICS",
    "SETS",
    "Caches",
    "Metric",
    "Mismatch",
    "Profiled",
    "Session",
    "derived",
    "join",
    "metric",
    "parse",
    "passes",
    "profile",
    "refusal",
    "select",
]
