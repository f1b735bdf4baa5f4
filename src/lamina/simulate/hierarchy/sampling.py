"""Time a part of a grid and say how far the whole may differ: batch means over finished workgroups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lamina.errors import UnsupportedError, UsageError
from lamina.record import SimRun
from lamina.simulate.hierarchy.config import Device
from lamina.simulate.hierarchy.memory import Memory
from lamina.simulate.hierarchy.program import LOAD, STORE, Program, occupancy
from lamina.simulate.hierarchy.timing import TICKS
from lamina.simulate.hierarchy.unit import Impl, Progress, Simulation, simulate

BATCHES = 10
STUDENT_T = 2.262
"""Two-sided 95 % for nine degrees of freedom."""
DISAGREE = 0.05
"""Halves whose rates differ by more have not reached a steady state."""


@dataclass(frozen=True)
class Estimate:
    """The whole grid's cycles from a part of it. ``relative_error`` is half the 95 % interval over the cycles."""

    run: Simulation
    cycles: int
    relative_error: float
    counters: dict[str, int]
    workgroups: int  # that were simulated

    @property
    def sampled(self) -> bool:
        return self.workgroups < self.run.program.workgroups

    @property
    def interval(self) -> tuple[float, float]:
        """Cycles, lower and upper."""
        return self.cycles * (1 - self.relative_error), self.cycles * (1 + self.relative_error)

    def record(self, layer: str = "") -> SimRun:
        """The estimate as lamina keeps it."""
        whole = self.run.record(layer)
        return SimRun(
            layer=whole.layer,
            kernel=whole.kernel,
            device=whole.device,
            config={**whole.config, "simulated_workgroups": self.workgroups},
            cycles=self.cycles,
            counters=self.counters,
            sampled=self.sampled,
            relative_error=self.relative_error if self.sampled else None,
        )


def sample(
    program: Program,
    device: Device,
    *,
    sets: int = 12,
    impl: Impl = "core",
    memory: Memory | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Simulate ``sets`` times as many workgroups as the device holds, and extrapolate their steady rate.

    The first row of workgroups touches pages and lines that later rows find again: it is simulated whole and
    not extrapolated from. Nor is the last set, which drains the device. A grid too small for that is run whole.
    Batches are whole rows where there are enough, since each row begins with pages of its own.

    Raises:
        UsageError: fewer than four sets.
        UnsupportedError: the two halves of the steady part differ by more than 5 %.
    """
    if sets < 4:
        raise UsageError(f"sets = {sets}: expected at least 4, of which the last is not steady")
    resident = occupancy(program, device) * device.cu.count
    first_row = max(resident, program.columns)
    count = first_row + sets * resident
    if count >= program.workgroups:
        run = simulate(program, device, impl=impl, memory=memory, progress=progress)
        return Estimate(run, run.cycles, 0.0, run.counters, program.workgroups)
    run = simulate(program, device, impl=impl, workgroups=count, memory=memory, progress=progress)
    finished = np.sort(run.finished)[first_row - 1 : count - resident]
    whole_rows = BATCHES * program.columns
    if len(finished) > whole_rows:
        finished = finished[-((len(finished) - 1) // whole_rows * whole_rows) - 1 :]
    marks = finished[np.linspace(0, len(finished) - 1, BATCHES + 1).astype(int)]
    each = (len(finished) - 1) / BATCHES
    rates = np.diff(marks) / each
    first, second = rates[: BATCHES // 2].mean(), rates[BATCHES // 2 :].mean()
    apart = abs(first - second) / max(first, second)
    if apart > DISAGREE:
        raise UnsupportedError(
            f"{program.name} on {device.name}: expected the halves of a sample of {count} workgroups within "
            f"{DISAGREE:.0%}, got {apart:.1%}: ask for more sets than {sets}, or run the whole grid"
        )
    rest = program.workgroups - count
    cycles = run.cycles + round(rest * float(rates.mean()) / TICKS)
    spread = STUDENT_T * float(rates.std(ddof=1)) / math.sqrt(BATCHES) * rest / TICKS
    return Estimate(run, cycles, spread / cycles, _whole(run, count), count)


def _whole(run: Simulation, count: int) -> dict[str, int]:
    """Counts of the whole grid: by the program where it tells, in proportion where only the sample does."""
    program = run.program
    known = {
        "instructions": program.instructions,
        "l1_reads": program.requests(LOAD),
        "l1_writes": program.requests(STORE),
    }
    return {key: known.get(key, round(value * program.workgroups / count)) for key, value in run.counters.items()}
