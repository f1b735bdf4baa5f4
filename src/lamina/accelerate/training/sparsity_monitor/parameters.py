"""The parameters of the monitor, with the published values as defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Literal, Self

from lamina.errors import UsageError

Rule = Literal["spartan", "every", "adaptive"]
"""How a map's period develops; see :class:`Pace`."""

_WRITTEN = re.compile(
    r"(?P<rule>spartan|every|adaptive):(?P<period>[0-9]{1,9})(-(?P<longest>[0-9]{1,9}))?(:(?P<duration>[0-9]{1,9}))?"
)


def require(kind: type, what: str, **arguments: object) -> None:
    """Refuse arguments of another type by name.

    Raises:
        UsageError: the first of them.
    """
    for name, value in arguments.items():
        if not isinstance(value, kind):
            raise UsageError(f"monitor: {name}: expected {what}, got {value!r}")


@dataclass(frozen=True)
class Pace:
    """The schedule of one activation map: how often it is monitored, and for how long (flexible monitoring).

    A monitoring process observes ``duration`` iterations in a row; the next one begins ``period`` iterations after it
    began. The rule says how the period develops:

    - ``spartan``: as published. It doubles while the map is stable, and in hibernation all such maps share one.
    - ``every``: it stays as it is.
    - ``adaptive``: the time in which the density changes by ``Parameters.stability`` at the rate last measured, from
      ``period`` to ``longest`` and at most twice the last one.

    Only ``spartan`` maps decide on hibernation and hibernate.

    Raises:
        UsageError: a duration below one or longer than the period, or a ``longest`` period that is missing, unexpected
            or shorter than the period.
    """

    period: int
    duration: int = 1
    rule: Rule = "spartan"
    longest: int | None = None

    def __post_init__(self) -> None:
        require(Integral, "a whole number", period=self.period, duration=self.duration, longest=self.longest or 0)
        if not 1 <= self.duration <= self.period:
            raise UsageError(
                f"monitor: expected 1 <= duration <= period, got duration {self.duration} and period {self.period}"
            )
        if (self.longest is not None) != (self.rule == "adaptive"):
            raise UsageError(
                f"monitor: expected a longest period with adaptive alone, got {self.longest} with {self.rule}"
            )
        if self.longest is not None and self.longest < self.period:
            raise UsageError(f"monitor: expected longest >= period, got {self.longest} and {self.period}")

    @classmethod
    def parse(cls, text: str, duration: int = 1) -> Self:
        """A schedule as written: ``every:10``, ``adaptive:10-1000``, ``spartan:100``; with a duration ``every:10:2``.

        Args:
            text: the schedule.
            duration: where the text has none; at most the period.

        Raises:
            UsageError: the text is no schedule.
        """
        found = _WRITTEN.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise UsageError(
                f"expected every:PERIOD, adaptive:PERIOD-LONGEST or spartan:PERIOD, each with or without :DURATION, "
                f"in iterations, got {text!r}"
            )
        period, longest = int(found["period"]), found["longest"]
        own = min(duration, period) if found["duration"] is None else int(found["duration"])
        rule: Rule = found["rule"]  # type: ignore[assignment]
        return cls(period, own, rule, None if longest is None else int(longest))

    def __str__(self) -> str:
        longest = "" if self.longest is None else f"-{self.longest}"
        return f"{self.rule}:{self.period}{longest}:{self.duration}"


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
        require(Integral, "a whole number", history=self.history, hibernation_period=self.hibernation_period)
        require(Real, "a number", sparse_enough=self.sparse_enough, stability=self.stability)
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
        """Check that a map is not monitored less often than in hibernation, if it may hibernate.

        Raises:
            UsageError: with both periods.
        """
        if pace.rule == "spartan" and pace.period > self.hibernation_period:
            raise UsageError(
                f"monitor: expected a period of at most the hibernation period {self.hibernation_period}, "
                f"got {pace.period}"
            )
