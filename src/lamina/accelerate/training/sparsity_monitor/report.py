"""The state of a map, for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lamina.accelerate.training.sparsity_monitor.parameters import Parameters
from lamina.accelerate.training.sparsity_monitor.sparsity_list import Entry
from lamina.accelerate.training.sparsity_monitor.state import State


@dataclass(frozen=True)
class MapReport:
    """One activation map.

    Attributes:
        state: that of all maps with the published schedule; maps with another are always active.
        period: iterations between its monitoring processes, at present.
        duration: iterations that a process samples.
        next: the iteration at which the next one begins.
        history: the densities last measured, the oldest first.
        why: what the last measurement led to.
        schedule: as `Pace.parse` reads it.
    """

    name: str
    state: State
    period: int
    duration: int
    next: int
    history: tuple[float, ...]
    why: str
    schedule: str

    @property
    def density(self) -> float | None:
        """The last measurement."""
        return self.history[-1] if self.history else None

    @classmethod
    def of(cls, entry: Entry, state: State, parameters: Parameters) -> Self:
        """From an entry of the sparsity list."""
        asleep = state is State.HIBERNATE and entry.pace.rule == "spartan"
        return cls(
            entry.name,
            state if entry.pace.rule == "spartan" else State.ACTIVE,
            parameters.hibernation_period if asleep else entry.period,
            entry.pace.duration,
            entry.next,
            tuple(1 - sparsity for sparsity in entry.history),
            entry.why,
            str(entry.pace),
        )
