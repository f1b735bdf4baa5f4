"""The baseline for comparison: every map at every iteration."""

from __future__ import annotations

from lamina.accelerate.training.sparsity_monitor.parameters import Parameters
from lamina.accelerate.training.sparsity_monitor.scheduler import Scheduler


class Exhaustive(Scheduler):
    """A scheduler for which every map is due at every iteration; it keeps histories and no periods."""

    decides = False

    def __init__(self) -> None:
        super().__init__(Parameters(initial_period=1, duration=1))

    def is_due(self, name: str, iteration: int) -> bool:
        """Always; a new name is added to the list."""
        if name not in self.maps:
            self.maps.add(name, iteration).why = "observed at every iteration"
        return True

    def next_due_iteration(self) -> int:
        """Every iteration."""
        return 0

    def observing(self, name: str, iteration: int) -> int:
        """Record that a map is being sampled, in a process of its own."""
        self.maps[name].next = iteration + 1
        return iteration

    def observed(self, name: str, begun: int, sparsity: float) -> None:
        """Record a sparsity."""
        self.maps[name].history.append(sparsity)
