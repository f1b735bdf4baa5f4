"""The parameters of the monitor, with the published values as defaults."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from lamina.errors import UsageError


@dataclass(frozen=True)
class Pace:
    """How often one activation map is monitored, and for how long: flexible monitoring.

    A monitoring process observes ``duration`` iterations in a row; the next one begins ``period`` iterations after it
    began.

    Raises:
        UsageError: a duration below one, or longer than the period.
    """

    period: int
    duration: int

    def __post_init__(self) -> None:
        if not 1 <= self.duration <= self.period:
            raise UsageError(
                f"monitor: expected 1 <= duration <= period, got duration {self.duration} and period {self.period}"
            )


@dataclass(frozen=True)
class Parameters:
    """Parameters of the sparsity monitor (Spartan, table 6.2).

    The published table has one threshold. It is ``sparse_enough`` here; what counts as unchanged is a ``stability`` of
    its own, since a map may be far from stable while it stays on one side of the first. The published work leaves the
    duration to the user.

    Args:
        history: measurements that are kept of each map.
        sparse_enough: least sparsity worth monitoring: below it a monitoring process ends at once.
        stability: a map is stable while its sparsity differs by less than this from the oldest one remembered.
        initial_period: iterations between the beginnings of two monitoring processes, at first.
        duration: iterations that a monitoring process observes.
        hibernation_period: the longest period, and the one that all maps share in hibernation.

    Raises:
        UsageError: a value is out of its range.
    """

    history: int = 10
    sparse_enough: float = 0.3
    stability: float = 0.02
    initial_period: int = 500
    duration: int = 5
    hibernation_period: int = 10_000

    def __post_init__(self) -> None:
        if self.history < 1:
            raise UsageError(f"monitor: expected a history of at least 1, got {self.history}")
        if not 0 <= self.sparse_enough <= 1:
            raise UsageError(f"monitor: expected sparse_enough within 0..1, got {self.sparse_enough}")
        if not (isfinite(self.stability) and self.stability > 0):
            raise UsageError(f"monitor: expected a positive stability, got {self.stability}")
        self.check(self.pace)

    @property
    def pace(self) -> Pace:
        """The pace of a map that has none of its own."""
        return Pace(self.initial_period, self.duration)

    def check(self, pace: Pace) -> None:
        """Check that a pace is not slower than hibernation.

        Raises:
            UsageError: with both periods.
        """
        if pace.period > self.hibernation_period:
            raise UsageError(
                f"monitor: expected a period of at most the hibernation period {self.hibernation_period}, "
                f"got {pace.period}"
            )
