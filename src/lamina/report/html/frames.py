"""The figures of a page: what is drawn for each choice that a reader has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina.record import Epoch
from lamina.report.figures import FIGURES, STEP, Figure, Material
from lamina.report.figures.training import training_figure
from lamina.report.palette import PHASES


@dataclass(frozen=True)
class Frames:
    """Figures of one topic each, with a frame for each setting, or one for all; a frame may be one for each phase.

    ``absent`` maps reasons to the titles of figures of which no frame could be drawn.
    """

    shown: dict[str, list[Figure]]
    drawn: dict[str, list[Any]]
    absent: dict[str, list[str]]


def frames(material: Material, epochs: Sequence[Epoch]) -> Frames:
    """Draw every figure for every setting and phase."""
    phases = present(material)
    made = Frames({}, {}, {})
    settings = list(material.settings) or [()]
    for template in FIGURES.values():
        first: Figure | None = None
        drawn: list[Any] = []
        for setting in settings if template.by_setting else settings[:1]:
            choices = {}
            for phase in phases if template.by_phase else [STEP]:
                figure = template.figure(material.scene(setting, phase))
                first = figure if first is None or (first.plot is None and figure.plot is not None) else first
                choices[phase] = figure.plot or figure.reason
            drawn.append(choices if template.by_phase else choices[STEP])
        if first and first.plot is not None:
            made.shown.setdefault(template.topic, []).append(first)
            made.drawn[template.id] = drawn
        elif first:
            made.absent.setdefault(first.reason, []).append(template.title)
    if training := training_figure(epochs):
        made.drawn["training"] = [training]
    return made


def present(material: Material) -> list[str]:
    """All phases together, and each one that has a time, unless there is but one."""
    found = [phase for phase in PHASES if any(row.phase == phase and row.timing for row in material.rows)]
    return [STEP, *found] if len(found) > 1 else [STEP]
