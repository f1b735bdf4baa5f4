"""A profile, by layer kind, and what a check of a statement answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lamina.explain import metrics
from lamina.explain.launches import Launch, Launches, mean
from lamina.explain.stalls import ISSUED, REASONS
from lamina.pipeline.explain import Side
from lamina.pipeline.rows import WHOLE_STEP
from lamina.record import LayerRun

LINEAR = ("convolution", "linear")
"""Linear data transformations, which the papers compare with all other layers."""
ACTIVATION = ("activation",)
COMPUTE_STALLS = ("wait", "not_selected", "math_pipe_throttle", "gmma", "dispatch_stall", "selected")
"""Stall reasons that more or faster cores would reduce."""
MEMORY_STALLS = ("long_scoreboard", "lg_throttle", "drain", "membar", "mio_throttle", "short_scoreboard")


@dataclass(frozen=True)
class Held:
    """Our result as text, and whether it agrees with the statement; ``None`` if the profile is not sufficient."""

    ours: str
    holds: bool | None


@dataclass(frozen=True)
class Sample:
    """A profile at its largest batch size. ``other`` is a second one to compare with."""

    side: Side
    other: Side | None = None

    @cached_property
    def rows(self) -> tuple[LayerRun, ...]:
        batch = max(row.batch for row in self.side.rows)
        return tuple(row for row in self.side.rows if row.batch == batch and row.phase != WHOLE_STEP and row.timing)

    @cached_property
    def launches(self) -> Launches:
        return Launches(self.side.kernels, self.side.counters)

    def us(self, kinds: Iterable[str] | None = None) -> float:
        """Time of the layers of the given kinds, or of all."""
        wanted = None if kinds is None else tuple(kinds)
        return sum(row.timing.median_us for row in self.rows if row.timing and (wanted is None or row.kind in wanted))

    def of(self, kinds: Iterable[str]) -> list[Launch]:
        """The kernels of the backward phases of the given kinds, or of all phases of an inference."""
        wanted = tuple(kinds)
        backward = [row for row in self.rows if row.phase != "forward"] or list(self.rows)
        return [launch for row in backward if row.kind in wanted for launch in self.launches[row.key]]

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The kinds that are not linear data transformations."""
        return tuple(dict.fromkeys(row.kind for row in self.rows if row.kind not in LINEAR))

    @cached_property
    def uncounted(self) -> tuple[str, ...]:
        """Phases without counters, in a profile that has some: ``conv2 forward``."""
        if not self.side.counters:
            return ()
        return tuple(
            f"{row.layer} {row.phase}"
            for row in self.rows
            if self.launches[row.key] and not any(launch.counters for launch in self.launches[row.key])
        )

    def means(self, metric: str) -> dict[str, float]:
        """A metric by layer kind, if it was collected."""
        found = {kind: mean(self.of([kind]), metric) for kind in dict.fromkeys(row.kind for row in self.rows)}
        return {kind: value for kind, value in found.items() if value is not None}


def top_stalls(launches: Sequence[Launch], most: int = 2) -> list[tuple[float, str]]:
    """The largest stall reasons, with their percentage of the warps' time; none if they were not counted."""
    shares = {reason: mean(launches, metrics.stall(reason)) for reason in REASONS if reason != ISSUED}
    return sorted(((value, reason) for reason, value in shares.items() if value), reverse=True)[:most]


def named(stalls: Iterable[tuple[float, str]]) -> str:
    """Stall reasons as text."""
    return " and ".join(f"{reason} {value:.0f} %" for value, reason in stalls)


def listed(found: Mapping[str, float], unit: str) -> str:
    """Values by kind as text."""
    return ", ".join(f"{kind} {value:.3g}" for kind, value in found.items()) + f" {unit}"


def unknown(reason: str) -> Held:
    """The profile is not sufficient."""
    return Held(reason, None)
