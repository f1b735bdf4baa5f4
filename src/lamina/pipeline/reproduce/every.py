"""``reproduce all``: every entry with a verdict, from recorded rows or quick measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.errors import LaminaError
from lamina.pipeline.reproduce import reproduce_measured, reproduce_recorded
from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.pipeline.reproduce.verdicts import (
    EXCEEDED,
    FAILED,
    NOT_APPLICABLE,
    NOT_MEASURED,
    REPRODUCED,
    SETTINGS,
    Verdict,
    mean_ratio,
    of_entry,
    of_row,
    ratio,
)
from lamina.pipeline.watch import Watch, tracked, unwatched
from lamina.record.beside import Beside
from lamina.spec.published import Published, entries

WORDS = (REPRODUCED, EXCEEDED, FAILED, NOT_APPLICABLE, NOT_MEASURED, SETTINGS)


@dataclass(frozen=True)
class Line:
    """One entry: its rows, where ours are from, and the verdict."""

    entry: Published
    rows: tuple[Beside, ...]
    source: str
    verdict: Verdict

    @property
    def ratio(self) -> float | None:
        """Geometric mean of ours over the published values."""
        return None if self.entry.configuration else mean_ratio(self.rows)

    @property
    def published(self) -> str:
        """What the paper prints, as ``1.12 to 3.5 x (6)`` or ``2 statements``."""
        values = [row.value for row in self.rows if not row.value.not_applicable and _is_number(row)]
        return _joined([float(it.value) for it in values], {it.unit for it in values}, self._statements)

    @property
    def measured(self) -> str:
        """Ours, as ``1.1 to 3.4 x (6)`` or ``1 of 2 hold``."""
        held = [row.agrees for row in self.rows if row.value.quantity == STATEMENT and row.agrees is not None]
        found = [row for row in self.rows if row.measured is not None and _is_number(row)]
        text = f"{sum(held)} of {len(held)} hold" if held else ""
        return _joined([row.measured or 0.0 for row in found], {row.value.unit for row in found}, text)

    @property
    def _statements(self) -> str:
        count = sum(row.value.quantity == STATEMENT for row in self.rows)
        return f"{count} statement{'s' * (count > 1)}" if count else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with a verdict for each row."""
        return {
            "name": self.entry.id,
            "place": self.entry.place,
            "title": self.entry.title,
            "paper": self.entry.paper,
            "configuration": self.entry.configuration,
            "published": self.published,
            "measured": self.measured,
            "ratio": self.ratio,
            "verdict": self.verdict.word,
            "why": self.verdict.why,
            "source": self.source,
            "rows": [
                {
                    "layer": row.value.layer,
                    "printed": row.value.printed,
                    "quantity": row.value.quantity,
                    "published": row.value.value,
                    "unit": row.value.unit,
                    "ours": row.ours,
                    "measured": row.measured,
                    "ratio": ratio(row),
                    "verdict": str(of_row(row) or ""),
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True)
class Summary:
    """Every entry. Tables of settings are counted apart from results."""

    lines: tuple[Line, ...]

    @property
    def results(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if not line.entry.configuration)

    @property
    def configurations(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.entry.configuration)

    @property
    def without_rows(self) -> tuple[Line, ...]:
        """Entries without a measured row, except those that are not applicable for a reason."""
        return tuple(line for line in self.lines if line.verdict.word == NOT_MEASURED)

    @property
    def counts(self) -> dict[str, int]:
        """The number of results with each verdict."""
        return {word: sum(line.verdict.word == word for line in self.results) for word in WORDS if word != SETTINGS}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in self.counts.items() if count or word == NOT_MEASURED)
        equal = [line.verdict.why for line in self.configurations if line.verdict.word == SETTINGS]
        ours, whole = (sum(int(why.split()[place]) for why in equal) for place in (0, 2))
        return (
            f"{len(self.results)} results: {counts}. {len(self.configurations)} tables of settings, counted apart: "
            f"{ours} of {whole} settings equal. {len(self.without_rows)} entries without a measured row except those "
            "marked not applicable with a reason."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "counts": self.counts,
            "tables of settings": len(self.configurations),
            "without a measured row": [line.entry.id for line in self.without_rows],
            "entries": [line.to_dict() for line in self.lines],
        }


def reproduce_all(
    device: str = "cpu", *, quick: bool = False, among: Sequence[Published] | None = None, watch: Watch = unwatched
) -> Summary:
    """Reproduce every entry.

    Args:
        device: where quick measurements run.
        quick: measure what runs on this device in a small version; all others are from recorded rows.
        among: entries, by default all.
        watch: called with progress events.
    """
    own = tuple(entries() if among is None else among)
    return Summary(tuple(_line(one, device, quick) for one in _shown(own, watch)))


def _shown(own: Sequence[Published], watch: Watch) -> Iterator[Published]:
    return tracked("reproducing", iter(own), len(own), watch)


def _line(entry: Published, device: str, quick: bool) -> Line:
    if quick and entry.measures:
        known = measurement(entry.measures)
        if known.run is not None and known.recorded and not (known.needs_gpu and device == "cpu"):
            try:
                return _judged(reproduce_measured(entry, device, quick=True))
            except LaminaError as error:
                return Line(entry, (), "", Verdict(NOT_MEASURED, str(error)))
    return _judged(reproduce_recorded(entry))


def _judged(done: Any) -> Line:
    return Line(done.entry, done.rows, done.source, of_entry(done.entry, done.rows))


def _is_number(row: Beside) -> bool:
    return not isinstance(row.value.value, str)


def _joined(values: Sequence[float], units: set[str], statements: str) -> str:
    """The range of values, if they share a unit, and the statements."""
    unit = f" {next(iter(units))}" if len(units) == 1 and next(iter(units)) else ""
    text = ""
    if len(values) == 1:
        text = f"{_short(values[0])}{unit}"
    elif values and len(units) == 1:
        text = f"{_short(min(values))} to {_short(max(values))}{unit} ({len(values)})"
    elif values:
        text = f"{len(values)} values"
    return ", ".join(filter(None, (text, statements)))


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
