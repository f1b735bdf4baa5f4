"""From records to conclusions: pure functions, no device and no drawing."""

from lamina.explain.comparison import compare
from lamina.explain.findings import findings
from lamina.explain.roofline import place, rooflines
from lamina.explain.steps import LayerStep, NetworkStep, phase_totals, shares, steps

__all__ = [
    "LayerStep",
    "NetworkStep",
    "compare",
    "findings",
    "phase_totals",
    "place",
    "rooflines",
    "shares",
    "steps",
]
