"""Which implementation of a layer runs, and why: one mechanism for every method."""

from lamina.accelerate.select.cache import Cache
from lamina.accelerate.select.executed import executed
from lamina.accelerate.select.observed import LayerCall, observe, stored
from lamina.accelerate.select.selection import (
    DENSE,
    MIN_SPEEDUP,
    SHORT_US,
    Candidates,
    Compiler,
    Lighter,
    Selector,
    Timer,
    decide,
    one_by_one,
)
from lamina.accelerate.select.step import compiled, forget_compiled, forgetting, layer_step
from lamina.accelerate.select.variant import variant

__all__ = [
    "DENSE",
    "MIN_SPEEDUP",
    "SHORT_US",
    "Cache",
    "Candidates",
    "Compiler",
    "LayerCall",
    "Lighter",
    "Selector",
    "Timer",
    "compiled",
    "decide",
    "executed",
    "forget_compiled",
    "forgetting",
    "layer_step",
    "observe",
    "one_by_one",
    "stored",
    "variant",
]
