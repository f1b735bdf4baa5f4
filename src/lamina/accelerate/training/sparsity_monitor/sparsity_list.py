"""The sparsity list: the state of each activation map."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lamina.accelerate.training.sparsity_monitor.parameters import Pace, Parameters


@dataclass
class Process:
    """A monitoring process in progress: ``issued`` iterations observed, of which the results in ``measured`` are in."""

    begun: int
    issued: int = 0
    measured: list[float] = field(default_factory=list)


@dataclass
class Entry:
    """One activation map.

    Attributes:
        pace: its schedule: initial period, duration, and how the period develops.
        period: its period in the active state.
        history: its last measurements, the oldest first.
        next: the iteration at which its next monitoring process begins.
        processes: those under way, the oldest first; all but the last only wait for results.
        why: what the last measurement led to, in words.
        measured_at: the iteration at which the process of the last measurement began.
    """

    name: str
    pace: Pace
    period: int
    history: deque[float]
    next: int
    processes: list[Process] = field(default_factory=list)
    why: str = "not measured yet"
    measured_at: int | None = None

    @property
    def in_progress(self) -> bool:
        """Whether its last process has iterations left to observe."""
        return bool(self.processes) and self.processes[-1].issued < self.pace.duration

    @property
    def sparsity(self) -> float | None:
        """The last measurement."""
        return self.history[-1] if self.history else None


class SparsityList:
    """The entries of all maps, in the order in which they were added.

    ``paces`` are by name or pattern of names (``features.*``): the name goes first, then the first pattern that fits.
    """

    def __init__(self, parameters: Parameters, paces: Mapping[str, Pace]):
        self._parameters = parameters
        self._paces = dict(paces)
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def add(self, name: str, iteration: int) -> Entry:
        """A new map, to be monitored from an iteration on."""
        pace = self._pace(name)
        entry = Entry(name, pace, pace.period, deque(maxlen=self._parameters.history), iteration)
        self._entries[name] = entry
        return entry

    def _pace(self, name: str) -> Pace:
        if name in self._paces:
            return self._paces[name]
        fitting = (pace for pattern, pace in self._paces.items() if fnmatchcase(name, pattern))
        return next(fitting, self._parameters.pace)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Everything but the paces, as plain data."""
        return {
            entry.name: {
                "period": entry.period,
                "history": [*entry.history],
                "next": entry.next,
                "process": [(each.begun, [*each.measured]) for each in entry.processes[-1:]],
                "why": entry.why,
                "measured_at": entry.measured_at,
            }
            for entry in self
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._entries.clear()
        for name, saved in state.items():
            entry = self.add(name, saved["next"])
            entry.period, entry.why, entry.measured_at = saved["period"], saved["why"], saved.get("measured_at")
            entry.history.extend(saved["history"])
            # Samples whose results had not arrived are lost: sample again.
            entry.processes = [Process(begun, len(measured), [*measured]) for begun, measured in saved["process"]]
