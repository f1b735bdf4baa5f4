"""Kernels as phase programs: tables of a wavefront's instructions between waits, and their addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.hierarchy.config import LINE, Device

VALU, LDS, LOAD, STORE, WAIT, END = range(6)
"""Kinds of phases: vector and LDS instructions, loads and stores of lines, a wait for all of them, the end."""

KIND, COUNT, SCALAR, BASE, PER_ROW, PER_COLUMN, PER_TRIP, ROWS, PITCH, LINES, MARK, GATHER = range(12)
"""Columns of a program's table: the kind of a phase, its instruction count, and the number of scalar instructions after
it. A memory request has ``ROWS`` runs of ``LINES`` lines, ``PITCH`` bytes apart; the first is at ``BASE`` plus
``PER_ROW``, ``PER_COLUMN``, ``PER_TRIP`` bytes per row and column of the workgroup and per loop iteration. ``MARK`` is
passed with each line to the level below L2; if it is not 0, a line that L2 cannot accept waits in L1. If ``GATHER`` is
not negative, the runs are at the program's indices of the iteration, starting with that one."""
COLUMNS = 12
SKIPPED = 2**16 - 1
"""The index of a run that is not requested."""


@dataclass(frozen=True)
class Phase:
    """One row of a program's table."""

    kind: int
    count: int = 0
    scalar: int = 0
    base: int = 0
    per_row: int = 0
    per_column: int = 0
    per_trip: int = 0
    rows: int = 0
    pitch: int = 0
    lines: int = 0
    mark: int = 0
    gather: int = -1

    @property
    def row(self) -> tuple[int, ...]:
        return (
            self.kind, self.count, self.scalar, self.base, self.per_row, self.per_column, self.per_trip,
            self.rows, self.pitch, self.lines, self.mark, self.gather,
        )  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A kernel over a grid of one-wavefront workgroups in row-major order: phases before, in and after a loop.

    ``trips`` are the loop iterations of each workgroup. ``image`` are the addresses of code and arguments, which are
    read once through L2 before the first workgroup, as part of the launch. ``bytes`` is the footprint. For
    data-dependent addresses, ``indices`` [loop iterations, runs] are the offsets of runs in units of the pitch; the
    iterations of a workgroup begin at row ``gathers[workgroup]``.
    """

    name: str
    before: tuple[Phase, ...]
    loop: tuple[Phase, ...]
    after: tuple[Phase, ...]
    rows: int
    columns: int
    trips: NDArray[np.int64] = field(repr=False)
    bytes: int
    instructions_per_workgroup: int
    instructions_per_trip: int
    registers: int
    lds_bytes: int
    image: tuple[int, ...] = field(default=(), repr=False)
    indices: NDArray[np.uint16] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.uint16), repr=False)
    gathers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)

    @property
    def workgroups(self) -> int:
        return self.rows * self.columns

    @property
    def table(self) -> NDArray[np.int64]:
        """All phases, one per row: [phases, 12]."""
        return np.array([phase.row for phase in (*self.before, *self.loop, *self.after)], dtype=np.int64)

    @property
    def instructions(self) -> int:
        """Wavefront instructions of the whole grid."""
        return self.workgroups * self.instructions_per_workgroup + int(self.trips.sum() * self.instructions_per_trip)

    @property
    def reach(self) -> tuple[int, int]:
        """The lowest address of any request, and the end of the highest."""
        last = max(int(self.trips.max(initial=0)), 1) - 1
        low, high = 0, 0
        farthest = self.indices.max(axis=0, initial=0, where=self.indices != SKIPPED)
        for phase in (*self.before, *self.loop, *self.after):
            if phase.kind not in (LOAD, STORE):
                continue
            steps = (
                phase.per_row * (self.rows - 1),
                phase.per_column * (self.columns - 1),
                phase.per_trip * last,
                phase.pitch * (max(phase.rows - 1, 0) if phase.gather < 0 else int(farthest[_runs(phase)].max())),
            )
            low = min(low, phase.base + sum(min(step, 0) for step in steps))
            high = max(high, phase.base + sum(max(step, 0) for step in steps) + phase.lines * LINE)
        return low, max([high, *self.image])

    def requests(self, kind: int) -> int:
        """Lines loaded or stored by the whole grid."""

        def lines(phases: tuple[Phase, ...]) -> int:
            return sum(phase.rows * phase.lines for phase in phases if phase.kind == kind and phase.gather < 0)

        gathered = sum(self._gathered(phase) * phase.lines for phase in self.loop if phase.kind == kind)
        always = self.workgroups * (lines(self.before) + lines(self.after)) + int(self.trips.sum()) * lines(self.loop)
        return always + gathered

    def _gathered(self, phase: Phase) -> int:
        """Runs of a phase in the whole grid that are not skipped."""
        if phase.gather < 0:
            return 0
        starts, first, times = np.unique(self.gathers, return_index=True, return_counts=True)
        trips = self.trips[first]
        each = (self.indices[:, _runs(phase)] != SKIPPED).sum(axis=1)
        before = np.concatenate([[0], np.cumsum(each)])
        return int(((before[starts + trips] - before[starts]) * times).sum())


def _runs(phase: Phase) -> slice:
    return slice(phase.gather, phase.gather + phase.rows)


def occupancy(program: Program, device: Device) -> int:
    """One-wavefront workgroups resident on a compute unit, limited by wavefront slots, registers and LDS.

    Raises:
        UsageError: not even one fits.
    """
    cu = device.cu
    granules = -(-program.registers // cu.register_granule) * cu.register_granule
    by_simd = min(cu.waves_per_simd, cu.vector_registers // granules if granules else cu.waves_per_simd)
    by_lds = cu.lds_bytes // program.lds_bytes if program.lds_bytes else by_simd * cu.simds
    fits = min(by_simd * cu.simds, by_lds)
    if not fits:
        raise UsageError(
            f"{program.name} does not fit on {device.name}: a workgroup needs {granules} registers per lane and "
            f"{program.lds_bytes} bytes of LDS, the compute unit has {cu.vector_registers} and {cu.lds_bytes}"
        )
    return fits


def aligned(size: int, unit: int) -> int:
    """``size`` rounded up to whole units."""
    return -(-size // unit) * unit
