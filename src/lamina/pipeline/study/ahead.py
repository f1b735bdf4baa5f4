"""Compiling kernels of candidates ahead: together in threads, before the first of them is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.accelerate.select import Compiler
from lamina.pipeline.study.attempts import Attempt
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.observed import Observed
from lamina.pipeline.study.trials import trials_of
from lamina.pipeline.watch import Stage

AHEAD = ("circulant", "eliminated", "fused", "weight-only")
"""Methods whose operators run whatever their kernels have written: without a launch that is anything."""

AHEAD_PART = 0.3
"""Of the time that the stage has left: what compiling ahead may take."""


def compile_kernels(attempts: Sequence[Attempt], observed: Observed, context: Context) -> None:
    """Compile the kernels of candidates together.

    Those that a part of the stage's time does not reach compile when they are timed.
    """
    fatal = context.fatal
    compiling = replace(observed, chosen=Compiler(observed.chosen))
    with context.budget.part(AHEAD_PART), compile_ahead():
        for index, attempt in enumerate(attempts):
            context.watch(Stage("compiling kernels", index, len(attempts)))
            if context.budget.over:
                break
            if attempt.refusal is None and attempt.method.name in AHEAD and fatal.reason(str(attempt)) is None:
                with fatal(str(attempt), "the layers"):
                    trials_of(attempt, compiling, context.budget)
