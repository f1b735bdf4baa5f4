"""Sums of phases to the step of a layer, and of layers to the step of the network.

Quartiles are added like medians. The result is exact if all parts vary together, as under a changing clock, and
conservative if they vary independently; so a difference outside it is significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lamina.record import LayerRun
from lamina.record.comparison import Setting, by_setting

WHOLE = "step"
"""The phase of a row that timed the whole network at once."""


@dataclass(frozen=True)
class Span:
    """A sum of timings, in microseconds."""

    median_us: float
    q1_us: float
    q3_us: float


@dataclass(frozen=True)
class LayerStep:
    """One layer's training step, the sum of its phases; ``None`` with a ``reason`` if a phase has no time.

    A phase that was skipped beside others with a time needs no gradient, so it takes no time.
    """

    layer: str
    kind: str
    place: int
    phases: Mapping[str, Span]
    step: Span | None
    reason: str = ""


@dataclass(frozen=True)
class NetworkStep:
    """The layers of one setting and their sum; ``None`` with a ``reason`` if a layer has no time.

    ``measured_us`` is the sum over all phases that have a time. ``whole`` is the row of the whole step timed at once,
    if there is one; it is in no sum.
    """

    setting: Setting
    layers: tuple[LayerStep, ...]
    step: Span | None
    measured_us: float
    whole: LayerRun | None = None
    reason: str = ""


def steps(rows: Sequence[LayerRun]) -> tuple[NetworkStep, ...]:
    """The step of every setting, with its layers in order of execution.

    A layer is expected to have, in each setting, the phases it has in any.
    """
    expected: dict[str, dict[str, LayerRun]] = {}
    for row in sorted(_layers(rows), key=lambda row: row.place):
        expected.setdefault(row.layer, {}).setdefault(row.phase, row)
    networks = []
    for setting, members in by_setting(rows).items():
        present = {(row.layer, row.phase): row for row in _layers(members)}
        layers = tuple(_layer_step(phases, present) for phases in expected.values())
        untimed = [layer for layer in layers if layer.step is None]
        networks.append(
            NetworkStep(
                setting=setting,
                layers=layers,
                step=None if untimed else _sum(layer.step for layer in layers if layer.step),
                measured_us=_sum(span for layer in layers for span in layer.phases.values()).median_us,
                whole=next((row for row in members if row.phase == WHOLE and row.timing), None),
                reason="; ".join(f"{layer.layer}: {layer.reason}" for layer in untimed),
            )
        )
    return tuple(networks)


def phase_totals(network: NetworkStep) -> dict[str, Span]:
    """Sum of each phase over the layers that have a time for it."""
    phases = dict.fromkeys(phase for layer in network.layers for phase in layer.phases)
    return {phase: _sum(layer.phases[phase] for layer in network.layers if phase in layer.phases) for phase in phases}


def shares(rows: Sequence[LayerRun]) -> dict[LayerRun, float]:
    """Each timed row's fraction, from 0 to 1, of the total time of its setting; the row of the whole step has none."""
    fractions: dict[LayerRun, float] = {}
    for members in by_setting(rows).values():
        timed = {row: row.timing.median_us for row in _layers(members) if row.timing}
        total = sum(timed.values())
        fractions |= {row: time / total if total else 0.0 for row, time in timed.items()}
    return fractions


def _layers(rows: Iterable[LayerRun]) -> list[LayerRun]:
    return [row for row in rows if row.phase != WHOLE]


def _layer_step(phases: Mapping[str, LayerRun], present: Mapping[tuple[str, str], LayerRun]) -> LayerStep:
    first = next(iter(phases.values()))
    spans, reasons = {}, []
    for phase in phases:
        row = present.get((first.layer, phase))
        if row and row.timing:
            spans[phase] = Span(row.timing.median_us, row.timing.q1_us, row.timing.q3_us)
        elif row is None or row.outcome != "skipped":
            reasons.append(
                f"{phase} {row.outcome}: {row.reason}" if row else f"{phase} was not measured in this setting"
            )
    if not spans and not reasons:
        reasons = [f"{phase} skipped: {present[first.layer, phase].reason}" for phase in phases]
    step = None if reasons else _sum(spans.values())
    return LayerStep(first.layer, first.kind, first.place, spans, step, "; ".join(reasons))


def _sum(spans: Iterable[Span]) -> Span:
    spans = tuple(spans)
    return Span(sum(s.median_us for s in spans), sum(s.q1_us for s in spans), sum(s.q3_us for s in spans))
