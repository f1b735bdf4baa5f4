"""Sampled simulation: extrapolates the rate of sets of workgroups to the grid, with a confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UnsupportedError, UsageError
from lamina.record import SimRun
from lamina.simulate.hierarchy.config import Device
from lamina.simulate.hierarchy.memory import Memory
from lamina.simulate.hierarchy.program import LOAD, STORE, Program, occupancy
from lamina.simulate.hierarchy.state import NEVER
from lamina.simulate.hierarchy.timing import TICKS
from lamina.simulate.hierarchy.unit import Impl, Progress, Running, Simulation, begin

MIN_STEADY = 3
"""Minimum number of steady-state sets for a rate."""
SPARED = 3
"""Minimum number of sets that a sample must save; otherwise the whole grid is run."""
STUDENT_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles for 1, 2, ... degrees of freedom; the last one for ten or more."""
DISAGREE = 0.05
"""Relative difference of the rates of both halves above which the sample is not steady."""
NARROW = 0.05
"""Relative half-width of the confidence interval at which sampling stops."""
DRIFT = 1.5
"""Allowed further drift of the rate, in differences between the halves."""
TAIL = 0.25
"""Fraction of a set's time by which the last set may finish earlier than in steady state, since none follows it."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cycles of the whole grid. ``relative_error`` is half the 95 % interval over the cycles."""

    run: Simulation
    cycles: int
    relative_error: float
    counters: dict[str, int]
    workgroups: int  # simulated

    @property
    def sampled(self) -> bool:
        return self.workgroups < self.run.program.workgroups

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound of the cycles."""
        return self.cycles * (1 - self.relative_error), self.cycles * (1 + self.relative_error)

    def record(self, layer: str = "") -> SimRun:
        """The estimate as a record."""
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


@dataclass(frozen=True)
class _Rate:
    """Ticks per instruction of the last simulated sets, and the resulting interval."""

    sets: NDArray[np.float64]

    @property
    def halves(self) -> tuple[float, float]:
        half = len(self.sets) // 2
        return float(self.sets[:half].mean()), float(self.sets[-half:].mean())

    @property
    def apart(self) -> float:
        return abs(self.halves[0] - self.halves[1]) / max(self.halves)

    def error(self, rest: int, last: int) -> float:
        """Half the 95 % interval, in ticks, of ``rest`` more instructions, ``last`` of them in the last set: residuals
        of a linear fit, drift and tail."""
        places = np.arange(len(self.sets))
        off = self.sets - np.polyval(np.polyfit(places, self.sets, 1), places)
        freedom = len(self.sets) - 2
        scatter = math.sqrt(float(off @ off) / freedom / (len(self.sets) // 2))
        first, second = self.halves
        each = STUDENT_T[min(freedom, len(STUDENT_T)) - 1] * scatter + DRIFT * abs(first - second)
        return each * rest + TAIL * second * last


def sample(
    program: Program,
    device: Device,
    *,
    sets: int = 12,
    impl: Impl = "core",
    memory: Memory | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Simulate several sets of resident workgroups, and extrapolate the rate of the last ones.

    The first row of workgroups touches pages and lines that later rows reuse: it is simulated completely and not used
    for extrapolation. Then whole sets of resident workgroups follow, until their rate is steady and the interval is
    narrow, or until ``sets`` sets. Batches are sets, because the workgroups of a set begin and end together; the first
    third, in which wavefronts drift apart, is discarded. A grid for which sampling would save little is run completely.

    Raises:
        UsageError: fewer than four sets.
        UnsupportedError: after all sets, the two halves of the steady part, or the lengths of the workgroups in it and
            of those left, differ by more than 5 %.
    """
    if sets < 4:
        raise UsageError(f"sets = {sets}: expected at least 4, of which the last is not steady")
    resident = occupancy(program, device) * device.cu.count
    first_row = max(resident, program.columns)
    running = begin(program, device, impl=impl, memory=memory)
    work = program.instructions_per_workgroup + program.trips * program.instructions_per_trip
    for taken in range(MIN_STEADY, sets + 1):
        count = first_row + taken * resident
        if count + SPARED * resident > program.workgroups:
            return _run_whole(running, progress)
        running.go(count)
        if progress:
            progress(min(1.0, taken / sets))
        run = running.simulation()
        order = np.argsort(run.finished, kind="stable")[-np.count_nonzero(run.finished != NEVER) :]
        marks = slice(first_row - 1 + min(taken // 3, taken - MIN_STEADY) * resident, count, resident)
        done = np.cumsum(work[order])
        rate = _Rate(np.diff(run.finished[order][marks]) / np.diff(done[marks]))
        rest = int(work.sum() - done[-1])
        cycles = run.cycles + round(rest * rate.halves[1] / TICKS)
        error = rate.error(rest, int(work[-resident:].sum())) / TICKS / cycles
        mine, others = work[order[first_row:]].mean(), rest / (program.workgroups - len(order))
        longer = abs(mine - others) / max(mine, others)
        if max(rate.apart, longer) <= DISAGREE and error <= NARROW:
            break
    if longer > DISAGREE:
        raise UnsupportedError(
            f"{program.name} on {device.name}: expected the workgroups of a sample of {count} as long as the others "
            f"within {DISAGREE:.0%}, got {longer:.1%}: use more sets than {sets}, or simulate the whole grid"
        )
    if rate.apart > DISAGREE:
        raise UnsupportedError(
            f"{program.name} on {device.name}: expected the halves of a sample of {count} workgroups within "
            f"{DISAGREE:.0%}, got {rate.apart:.1%}: use more sets than {sets}, or simulate the whole grid"
        )
    return Estimate(run, cycles, error, _whole(run), count)


def _run_whole(running: Running, progress: Progress | None) -> Estimate:
    running.go(running.workgroups)
    if progress:
        progress(1.0)
    run = running.simulation()
    return Estimate(run, run.cycles, 0.0, run.counters, running.workgroups)


def _whole(run: Simulation) -> dict[str, int]:
    """Counters of the whole grid: from the program if known, else scaled from the sample by the number of reads."""
    program = run.program
    known = {
        "instructions": program.instructions,
        "l1_reads": program.requests(LOAD),
        "l1_writes": program.requests(STORE),
    }
    scale = known["l1_reads"] / run.counters["l1_reads"]
    return {key: known.get(key, round(value * scale)) for key, value in run.counters.items()}
