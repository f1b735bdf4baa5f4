"""Runs a program on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lamina.errors import MissingError, UsageError
from lamina.record import SimRun
from lamina.simulate.hierarchy.config import Device
from lamina.simulate.hierarchy.counters import NAMES
from lamina.simulate.hierarchy.memory import DramMemory, Memory
from lamina.simulate.hierarchy.program import Program, occupancy
from lamina.simulate.hierarchy.state import MAX_LINES, O_COUNTERS, O_FINISHED, initial
from lamina.simulate.hierarchy.timing import TICKS, timing_of

Impl = Literal["core", "reference"]
Progress = Callable[[float], None]
"""Called with the fraction of finished workgroups."""
STEPS = 100


@dataclass(frozen=True)
class Simulation:
    """The result of a run: cycles with the launch, counters, and the finish time of each workgroup in ticks."""

    program: Program
    device: Device
    impl: Impl
    cycles: int
    counters: dict[str, int]
    finished: NDArray[np.int64] = field(repr=False)

    @property
    def microseconds(self) -> float:
        return self.cycles / self.device.clock_ghz / 1e3

    def record(self, layer: str = "") -> SimRun:
        """The run as a record."""
        return SimRun(
            layer=layer,
            kernel=self.program.name,
            device=self.device.name,
            config={**self.device.settings(), "impl": self.impl},
            cycles=self.cycles,
            counters=self.counters,
        )


@dataclass(frozen=True)
class Running:
    """A run that can be paused after a number of workgroups and continued.

    ``go(until)`` continues until that many have finished; ``finished`` gives the tick of each (``NEVER``: not yet).
    """

    program: Program
    device: Device
    impl: Impl
    workgroups: int
    go: Callable[[int], None]
    finished: Callable[[], NDArray[np.int64]]
    _counted: Callable[[], dict[str, int]]

    def simulation(self) -> Simulation:
        """The result so far."""
        finished = self.finished()
        counters = self._counted()
        counters["instructions"] = _instructions(self.program, self.workgroups)
        return Simulation(
            program=self.program,
            device=self.device,
            impl=self.impl,
            cycles=-(-int(finished.max()) // TICKS) + round(self.device.launch_cycles),
            counters=counters,
            finished=finished,
        )


def simulate(
    program: Program,
    device: Device,
    *,
    impl: Impl = "core",
    workgroups: int | None = None,
    memory: Memory | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Simulate a program. ``core`` is compiled, ``reference`` plain Python; their results are identical.

    ``workgroups`` runs only the first so many; ``memory`` puts another part below L2.

    Raises:
        UsageError, MissingError: as ``begin``.
    """
    running = begin(program, device, impl=impl, workgroups=workgroups, memory=memory)
    count = running.workgroups
    step = max(1, count // STEPS) if progress else count
    for until in (*range(step, count, step), count):
        running.go(until)
        if progress:
            progress(until / count)
    return running.simulation()


def begin(
    program: Program,
    device: Device,
    *,
    impl: Impl = "core",
    workgroups: int | None = None,
    memory: Memory | None = None,
) -> Running:
    """A run before its first event; for arguments see ``simulate``.

    Raises:
        UsageError: the program does not fit the device, has more lines than ``core`` counts, or an argument has
            no meaning.
        MissingError: ``impl="core"`` without numba.
    """
    if impl not in ("core", "reference"):
        raise UsageError(f"impl = {impl!r}: expected 'core' or 'reference'")
    count = program.workgroups if workgroups is None else workgroups
    if not 1 <= count <= program.workgroups:
        raise UsageError(f"workgroups = {count}: expected 1 to the {program.workgroups} of {program.name}")
    if program.bytes > device.dram.bytes:
        raise UsageError(
            f"{program.name} needs {program.bytes} bytes, {device.name} has {device.dram.bytes}: "
            "choose a smaller problem or raise dram.bytes"
        )
    low, high = program.reach
    if low < 0 or high > program.bytes:
        raise UsageError(
            f"{program.name} reaches from {low} to {high}: expected addresses from 0 to its {program.bytes} bytes"
        )
    widest = max(phase.rows * phase.lines for phase in (*program.before, *program.loop, *program.after))
    if widest > MAX_LINES:
        raise UsageError(f"{program.name} requests {widest} lines at once: expected at most {MAX_LINES}")
    run = _core if impl == "core" else _reference
    return run(program, device, count, memory or DramMemory(device))


def _reference(program: Program, device: Device, count: int, memory: Memory) -> Running:
    from lamina.simulate.hierarchy.reference import Machine

    part = memory.reference()
    machine = Machine(program, timing_of(device), occupancy(program, device), part, count)
    return Running(
        program, device, "reference", count, machine.run, lambda: np.array(machine.finished, dtype=np.int64),
        lambda: {**machine.counters, **memory.counters(part)},
    )  # fmt: skip


def _core(program: Program, device: Device, count: int, memory: Memory) -> Running:
    if find_spec("numba") is None:
        raise MissingError("impl='core' needs numba: pip install 'lamina[sim]', or use impl='reference'")
    from lamina.simulate.hierarchy import core

    state = initial(program, timing_of(device), occupancy(program, device), count)
    below, part = memory.compiled()
    image = np.array(program.image, dtype=np.int64)

    def go(until: int) -> None:
        core.advance(state, below, part, image, until)

    def counted() -> dict[str, int]:
        own = state[state[O_COUNTERS] :][: len(NAMES)]
        return {**dict(zip(NAMES, map(int, own), strict=True)), **memory.counters(part)}

    return Running(program, device, "core", count, go, lambda: state[state[O_FINISHED] :][:count].copy(), counted)


def _instructions(program: Program, count: int) -> int:
    return count * program.instructions_per_workgroup + int(program.trips[:count].sum() * program.instructions_per_trip)
