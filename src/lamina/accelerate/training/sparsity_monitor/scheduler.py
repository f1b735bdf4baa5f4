"""The scheduler: which activation maps to sample at an iteration, and how their sparsity adjusts the period.

After Spartan's sparsity monitor (section 6.2): flexible monitoring, fast termination, and a period that the Dynamic
Period Adjustment Algorithm (algorithm 1) and the Sparsity Stability Detecting Algorithm (algorithm 2) manage.

Results arrive some iterations late. Every decision refers to the iteration that was sampled, never to the one at which
its result arrived, so that a run does not depend on the delay, as long as results arrive in order and before the map's
next process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

from lamina.accelerate.training.sparsity_monitor.parameters import Pace, Parameters, require
from lamina.accelerate.training.sparsity_monitor.sparsity_list import Entry, Process, SparsityList
from lamina.accelerate.training.sparsity_monitor.state import State
from lamina.errors import UsageError, nearest


class Scheduler:
    """The monitor's state machine, apart from any device.

    Args:
        parameters: thresholds and periods.
        paces: schedules of some maps, by name or pattern of names such as ``features.*``.

    Raises:
        UsageError: a pace slower than hibernation, or an argument of another type.

    Attributes:
        decides: whether decisions depend on the results, so that they are needed soon.
    """

    decides = True

    def __init__(self, parameters: Parameters | None = None, paces: Mapping[str, Pace] | None = None):
        self.parameters = Parameters() if parameters is None else parameters
        require(Parameters, "Parameters", parameters=self.parameters)
        require(Mapping, "a Pace by name, such as {'features.*': Pace(10)}", paces=paces or {})
        for name, pace in (paces or {}).items():
            require(str, "names of maps", paces=name)
            require(Pace, "a Pace by name, such as Pace.parse('every:10')", paces=pace)
            self.parameters.check(pace)
        self.state = State.ACTIVE
        self.maps = SparsityList(self.parameters, paces or {})

    def is_due(self, name: str, iteration: int) -> bool:
        """Whether to observe a map at an iteration; a name that is new joins the list and is observed at once."""
        entry = self.maps[name] if name in self.maps else self.maps.add(name, iteration)
        return entry.in_progress or iteration >= entry.next

    def next_due_iteration(self) -> int:
        """The first iteration at which a map of the list may be due; 0 if one is at any, or the list is empty."""
        return min((0 if entry.in_progress else entry.next for entry in self.maps), default=0)

    def observing(self, name: str, iteration: int) -> int:
        """Note that a due map is being observed; answer the process that its result belongs to.

        Raises:
            UsageError: the map is not due.
        """
        if not self.is_due(name, iteration):
            raise UsageError(f"monitor: {name} is not due at iteration {iteration}: ask is_due first")
        entry = self.maps[name]
        if iteration >= entry.next:
            waiting = [each for each in entry.processes if each.issued == entry.pace.duration]
            entry.processes = [*waiting, Process(iteration)]
            entry.next = iteration + self._period(entry)
        entry.processes[-1].issued += 1
        return entry.processes[-1].begun

    def observed(self, name: str, begun: int, sparsity: float) -> None:
        """Take in the sparsity of one observation of the process that began at ``begun``.

        The mean over a process is its measurement. The result of a process that was given up is ignored.

        Raises:
            UsageError: there is no such map, or the sparsity is not within 0..1.
        """
        if name not in self.maps:
            raise UsageError(f"monitor: map {name!r} is not monitored: {nearest(name, [e.name for e in self.maps])}")
        if not 0 <= sparsity <= 1:
            raise UsageError(f"monitor: expected a sparsity within 0..1, got {sparsity}")
        entry = self.maps[name]
        process = next((each for each in entry.processes if each.begun == begun), None)
        if process is None:
            return
        process.measured.append(sparsity)
        missing = entry.pace.duration - len(process.measured)
        if missing and sparsity >= self.parameters.sparse_enough:
            return
        entry.processes.remove(process)
        self._measured(entry, begun, fmean(process.measured))
        if missing:
            entry.why += f"; stopped after {len(process.measured)} of {entry.pace.duration} iterations"

    def _measured(self, entry: Entry, begun: int, sparsity: float) -> None:
        if entry.pace.rule != "spartan":
            self._follow_own_schedule(entry, begun, sparsity)
        elif self.state is State.ACTIVE:
            self._adjust_period(entry, sparsity)
        if entry.pace.rule == "spartan" and self._detect_stability(entry, sparsity):
            for each in self._sharing():
                each.processes.clear()
                each.next = begun + self._period(each)
        else:
            entry.next = max([begun, *(each.begun for each in entry.processes)]) + self._period(entry)

    def _follow_own_schedule(self, entry: Entry, begun: int, sparsity: float) -> None:
        before, at, pace = entry.sparsity, entry.measured_at, entry.pace
        entry.history.append(sparsity)
        entry.measured_at = begun
        if pace.longest is None:
            entry.why = f"every {pace.period} iterations"
        elif before is None or at is None:
            entry.why = "first measurement"
        else:
            change, elapsed = abs(sparsity - before), begun - at
            most = min(2 * entry.period, pace.longest)
            wanted = elapsed * self.parameters.stability / change if change else most
            entry.period = max(pace.period, round(min(wanted, most)))
            entry.why = f"changed by {change:.4f} in {elapsed} iterations: period {entry.period}"

    def _sharing(self) -> list[Entry]:
        """The maps that hibernate together."""
        return [each for each in self.maps if each.pace.rule == "spartan"]

    def _adjust_period(self, entry: Entry, sparsity: float) -> None:
        """Algorithm 1, dynamic period adjustment."""
        limits = self.parameters
        if len(entry.history) < limits.history:
            entry.history.append(sparsity)
            entry.why = f"history {len(entry.history)} of {limits.history}"
            return
        change = abs(sparsity - entry.history[0])
        if change < limits.stability:
            entry.period *= 2
        entry.period = min(entry.period, limits.hibernation_period)
        entry.history.append(sparsity)
        verdict = f"below {limits.stability:g}" if change < limits.stability else f"not below {limits.stability:g}"
        entry.why = f"changed by {change:.4f} over the history, {verdict}: period {entry.period}"

    def _detect_stability(self, entry: Entry, sparsity: float) -> bool:
        """Algorithm 2, stability detection, to the letter; answer whether it moved all maps to another state.

        A measurement that sends the monitor into hibernation is checked once more there, and one that joins a history
        not yet full joins it twice.
        """
        limits, moved = self.parameters, False
        if self.state is State.ACTIVE and all(each.period == limits.hibernation_period for each in self._sharing()):
            self.state, moved = State.HIBERNATE, True
        if self.state is State.HIBERNATE:
            if len(entry.history) < limits.history:
                entry.history.append(sparsity)
            elif (change := abs(sparsity - entry.history[0])) >= limits.stability:
                for each in self._sharing():
                    each.period = each.pace.period
                self.state, moved = State.ACTIVE, True
                entry.history.clear()
                entry.why = f"changed by {change:.4f} in hibernation, not below {limits.stability:g}: all maps active"
            else:
                entry.why = f"changed by {change:.4f} over the history, below {limits.stability:g}: hibernate"
            entry.history.append(sparsity)
        return moved

    def _period(self, entry: Entry) -> int:
        asleep = self.state is State.HIBERNATE and entry.pace.rule == "spartan"
        return self.parameters.hibernation_period if asleep else entry.period

    def state_dict(self) -> dict[str, Any]:
        """The state for resuming, as plain data."""
        return {"parameters": asdict(self.parameters), "state": str(self.state), "maps": self.maps.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Raises:
            UsageError: it was saved with other parameters.
        """
        mine = asdict(self.parameters)
        other = {key: value for key, value in state["parameters"].items() if mine.get(key) != value}
        if other:
            wanted = ", ".join(f"{key}={value}" for key, value in other.items())
            raise UsageError(f"monitor: this state was saved with {wanted}: build the monitor with the same")
        self.state = State(state["state"])
        self.maps.load_state_dict(state["maps"])
