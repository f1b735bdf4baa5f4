"""The input of the rules: one setting of a run with its times, rooflines, kernels and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lamina.explain.bounds import Bound, bound
from lamina.explain.launches import Launch, Launches, total_us
from lamina.explain.patterns import patterns
from lamina.explain.steps import NetworkStep
from lamina.record import Finding, LayerRun, Roofline, Roofs, Timing
from lamina.record.comparison import Setting
from lamina.record.wording import place

MATTERS = 0.02
"""Phases below this fraction of the step are ignored: removing them entirely would hardly change the total."""
SAVING = "potential saving"
"""Evidence that ranks findings: the largest fraction of the step time, from 0 to 1, that acting on one can save."""

FACT, MODEL, BY_NAME = 1.0, 0.8, 0.6
"""Confidence of findings from times and counters, of those that assume that the counted FLOPs and bytes are the actual
work, and of those from kernel names."""


@dataclass(frozen=True)
class View:
    """One setting of a run, as the rules read it. ``rows`` exclude the row of the whole step.

    ``wall`` is the whole step by the wall clock, be it of this setting or of the same one by another clock.
    ``power_limit_w`` is what the device may draw.
    """

    setting: Setting
    rows: tuple[LayerRun, ...]
    network: NetworkStep
    share: Mapping[LayerRun, float]
    roofline: Mapping[LayerRun, Roofline]
    roofs: Roofs | None = None
    launches: Launches = field(default_factory=lambda: Launches(()))
    wall: LayerRun | None = None
    power_limit_w: float | None = None

    @cached_property
    def bounds(self) -> Mapping[LayerRun, Bound]:
        """What limits each row that has a time."""
        return {row: bound(row, self.launches[row.key], self.roofs) for row in self.rows if row.timing}

    @cached_property
    def timings(self) -> Mapping[LayerRun, Timing]:
        """The time of each row that has one."""
        return {row: row.timing for row in self.rows if row.timing}

    @cached_property
    def repeats(self) -> Mapping[str, Sequence[str]]:
        """The layers of each pattern: those that repeat together, any other alone."""
        return patterns(row.layer for row in self.rows)

    def matters(self, row: LayerRun) -> bool:
        return self.share.get(row, 0.0) >= MATTERS

    def fraction(self, row: LayerRun, launches: Sequence[Launch]) -> float:
        """The fraction of the step time in the given kernels of a row."""
        all_us = total_us(self.launches[row.key])
        return self.share.get(row, 0.0) * total_us(launches) / all_us if all_us else 0.0

    def finding(
        self,
        rule: str,
        claim: str,
        evidence: Mapping[str, float | str | None],
        rows: Sequence[LayerRun],
        base: float,
        about: LayerRun | None = None,
    ) -> Finding:
        """A finding based on ``rows``: their spread lowers the confidence ``base``, at most by half."""
        where = place(self.setting)
        noise = max((spread(row) for row in rows), default=0.0)
        return Finding(
            layer=about.layer if about else None,
            phase=about.phase if about else None,
            rule=rule,
            claim=f"{where}: {claim}" if where else claim,
            evidence=({"setting": where} if where else {}) | dict(evidence),
            confidence=round(base * (1 - min(noise, 0.5)), 2),
        )


def potential_saving(finding: Finding) -> float:
    """The largest fraction of the step time that acting on a finding can save; 0 if it has no such estimate."""
    value = finding.evidence.get(SAVING)
    return value if isinstance(value, float) else 0.0


def spread(row: LayerRun) -> float:
    """Interquartile range over median."""
    timing = row.timing
    return (timing.q3_us - timing.q1_us) / timing.median_us if timing and timing.median_us > 0 else 0.0
