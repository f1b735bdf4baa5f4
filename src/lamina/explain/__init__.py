"""From records to conclusions: pure functions, no device and no drawing."""

from lamina.explain.bounds import Bound
from lamina.explain.comparison import compare, overall, per_item
from lamina.explain.counter_comparison import CounterComparison, compare_counters
from lamina.explain.findings import bounds, findings
from lamina.explain.kernel_comparison import KernelComparison, compare_kernels
from lamina.explain.paragraphs import Paragraph, paragraphs
from lamina.explain.roofline import place, rooflines
from lamina.explain.steps import LayerStep, NetworkStep, phase_totals, shares, steps
from lamina.explain.view import stake

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
    "overall",
    "paragraphs",
    "per_item",
    "phase_totals",
    "place",
    "rooflines",
    "shares",
    "stake",
    "steps",
]
