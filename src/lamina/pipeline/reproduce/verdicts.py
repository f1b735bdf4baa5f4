"""Verdicts on published values and on whole entries, computed from values beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.record.beside import Beside
from lamina.spec.published import Published

TOLERANCE = 0.1
"""Relative difference within which a measured value reproduces a published one."""
REPRODUCED, EXCEEDED, FAILED = "reproduced", "exceeded", "not reproduced"
NOT_APPLICABLE, NOT_MEASURED, SETTINGS = "not applicable", "not measured", "settings"
MOST = 2
"""Failing rows that a verdict names."""


@dataclass(frozen=True)
class Verdict:
    """One of ``reproduced``, ``exceeded``, ``not reproduced``, ``not applicable``, ``not measured``, ``settings``."""

    word: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


def ratio(row: Beside) -> float | None:
    """Ours over the published value; ``None`` if one of them is no number."""
    value = row.value.value
    if row.measured is None or isinstance(value, str) or not value:
        return None
    return row.measured / value


def of_row(row: Beside) -> Verdict | None:
    """The verdict on one value or statement; ``None`` for bars without a printed value."""
    value, part = row.value, ratio(row)
    if value.not_applicable:
        return Verdict(NOT_APPLICABLE, value.not_applicable)
    if value.quantity == STATEMENT or part is None:
        if row.agrees is None:
            return Verdict(NOT_MEASURED, row.ours) if not isinstance(value.value, str) or _states(row) else None
        return Verdict(REPRODUCED) if row.agrees else Verdict(FAILED, row.ours)
    if value.bound:
        # A value that rounds to the printed digits of the bound keeps it.
        kept = (part >= 1 if value.bound == "at least" else part <= 1) or bool(row.agrees)
        return Verdict(REPRODUCED) if kept else Verdict(FAILED, f"{row.ours}, printed {value.bound} {_printed(row)}")
    if row.agrees or abs(part - 1) <= TOLERANCE:
        return Verdict(REPRODUCED)
    better = {"higher": part > 1, "lower": part < 1, "equal": False}[value.improves]
    return Verdict(EXCEEDED) if better else Verdict(FAILED, f"{row.ours}, printed {_printed(row)}")


def of_entry(entry: Published, rows: Sequence[Beside]) -> Verdict:
    """The verdict on an entry: reproduced only if every row is that can be judged.

    Tables of settings are never reproduced results.
    """
    if entry.not_applicable:
        return Verdict(NOT_APPLICABLE, entry.not_applicable)
    found = [(row, verdict) for row in rows if (verdict := of_row(row)) is not None]
    judged = [(row, one) for row, one in found if one.word in (REPRODUCED, EXCEEDED, FAILED)]
    if entry.configuration:
        equal = sum(one.word != FAILED for _, one in judged)
        return Verdict(SETTINGS, f"{equal} of {len(judged)} equal")
    if not judged:
        if entry.unrecorded:
            return Verdict(NOT_APPLICABLE, entry.unrecorded)
        reasons = list(dict.fromkeys(one.why for _, one in found))
        word = NOT_APPLICABLE if found and all(one.word == NOT_APPLICABLE for _, one in found) else NOT_MEASURED
        return Verdict(word, "; ".join(reasons[:MOST]) or "no rows")
    failed = [(row, one) for row, one in judged if one.word == FAILED]
    missing = [row for row, one in found if one.word == NOT_MEASURED]
    if failed or missing:
        words = [f"{_named(row)} {one.why}" for row, one in failed] + [f"{_named(row)} {row.ours}" for row in missing]
        more = f"; and {len(words) - MOST} more" if len(words) > MOST else ""
        whole = len(judged) + len(missing)
        return Verdict(FAILED, f"{len(words)} of {whole}: {'; '.join(words[:MOST])}{more}" if whole > 1 else words[0])
    return Verdict(EXCEEDED if all(one.word == EXCEEDED for _, one in judged) else REPRODUCED)


def mean_ratio(rows: Iterable[Beside]) -> float | None:
    """Geometric mean of ours over the published values; ``None`` without positive ratios."""
    found = [part for row in rows if (part := ratio(row)) is not None and part > 0]
    return prod(found) ** (1 / len(found)) if found else None


def _states(row: Beside) -> bool:
    return row.value.quantity == STATEMENT


def _printed(row: Beside) -> str:
    return f"{row.value.value} {row.value.unit}".strip()


def _named(row: Beside) -> str:
    return f"{row.value.printed or row.value.layer}:"
