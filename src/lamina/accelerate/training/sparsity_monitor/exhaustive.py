"""The comparison: every map at every iteration."""

from __future__ import annotations

from lamina.accelerate.training.sparsity_monitor.parameters import Parameters
from lamina.accelerate.training.sparsity_monitor.scheduler import Scheduler


class Exhaustive(Scheduler):
    """A scheduler to which every map is due at every iteration; it keeps histories and manages no period."""

    decides = False

    def __init__(self) -> None:
        super().__init__(Parameters(initial_period=1, duration=1))

    def is_due(self, name: str, iteration: int) -> bool:
        """Always; a name that is new joins the list."""
        if name not in self.maps:
            self.maps.add(name, iteration).why = "observed at every iteration"
        return True

    def wakes(self) -> int:
        """At any iteration."""
        return 0

    def observing(self, name: str, iteration: int) -> int:
        """Note that a map is being observed: a process of its own."""
        self.maps[name].next = iteration + 1
        return iteration

    def observed(self, name: str, begun: int, sparsity: float) -> None:
        """Remember a sparsity."""
        self.maps[name].history.append(sparsity)
