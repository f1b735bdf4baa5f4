"""Simulation jobs on the engines of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from lamina.pipeline.sweep.attempts import RETRIES, attempt
from lamina.pipeline.sweep.engines import Engine, Limits, Lost
from lamina.simulate.engines import Results
from lamina.simulate.jobs import Job, Result, execute


@dataclass(frozen=True)
class JobsEngine:
    """Runs simulation jobs on ``engine`` within ``limits``; one that was killed is tried again up to ``retries`` times.

    A job without a result keeps the reason, and the others go on.
    """

    engine: Engine
    limits: Limits = field(default_factory=Limits)
    retries: int = RETRIES

    def submit(self, jobs: Sequence[Job]) -> Results:
        with closing(attempt(self.engine, execute, jobs, self.limits, self.retries)) as attempts:
            for done in attempts:
                lost = isinstance(done.outcome, Lost)
                yield Result(done.task, None, f"{done.task.layer}: {done.outcome.reason}") if lost else done.outcome
