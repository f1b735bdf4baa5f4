"""Judging published values and statements by measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import UsageError
from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.record.beside import Beside
from lamina.spec.published import Published, PublishedStatement, PublishedValue

Row = Mapping[str, Any]
Rows = Sequence[Row]
Judged = tuple[str, bool]
"""Our result as text, and whether it agrees with the statement."""
Rule = Callable[[Rows], Judged]
Value = Callable[[Rows, PublishedValue], tuple[float, str]]
"""Our value in the unit of the published one, and a text with what it was computed from."""
INSUFFICIENT = "cannot be determined from these rows"


class NotMeasured(LookupError):
    """A rule's reason why no rows can have its value."""


class NotApplicable(LookupError):
    """A rule's reason why rows of this machine cannot have its value."""


@dataclass(frozen=True)
class Scope:
    """How a measurement runs. ``quick``: small enough for a few minutes on a CPU."""

    device: str
    quick: bool = True


@dataclass(frozen=True)
class Measurement:
    """The rows of an entry: ``recorded`` names those that the package ships.

    ``values`` by quantity and ``statements`` by the name of their check judge rows. ``run`` measures rows on a
    device; without it the command that does is ``command``. ``needs_gpu``: ``run`` does not work on a CPU.
    """

    recorded: tuple[str, ...]
    values: Mapping[str, Value] = field(default_factory=dict)
    statements: Mapping[str, Rule] = field(default_factory=dict)
    run: Callable[[Scope], Rows] | None = None
    needs_gpu: bool = False
    command: str = ""


def judge(entry: Published, measurement: Measurement, rows: Rows) -> tuple[Beside, ...]:
    """Every published value and statement of an entry beside ours.

    Raises:
        UsageError: the measurement has no rule for a quantity or a check of the entry.
    """
    return (
        *(_value(it, measurement, rows) for it in entry.values),
        *(_statement(it, measurement, rows) for it in entry.statements),
    )


def _value(it: PublishedValue, measurement: Measurement, rows: Rows) -> Beside:
    if it.not_applicable:
        return Beside(it, "not applicable", None)
    if it.quantity not in measurement.values:
        raise UsageError(f"{it.layer}: no rule computes the quantity {it.quantity!r}")
    try:
        ours, text = measurement.values[it.quantity](rows, it)
    except NotMeasured as error:
        return Beside(it, str(error), None)
    except NotApplicable as error:
        return Beside(it.model_copy(update={"not_applicable": str(error)}), "not applicable", None)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # required rows or values are missing
        return Beside(it, INSUFFICIENT, None)
    return Beside(it, text or f"{ours:.3g} {it.unit}".strip(), it.agrees(ours), ours)


def _statement(it: PublishedStatement, measurement: Measurement, rows: Rows) -> Beside:
    value = PublishedValue(
        layer=it.about, quantity=STATEMENT, value=it.says, note=it.note, not_applicable=it.not_applicable
    )
    if it.not_applicable:
        return Beside(value, "not applicable", None)
    if it.check not in measurement.statements:
        raise UsageError(f"{it.about}: no rule verifies {it.check!r}")
    try:
        ours, holds = measurement.statements[it.check](rows)
    except NotMeasured as error:
        return Beside(value, str(error), None)
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return Beside(value, INSUFFICIENT, None)
    return Beside(value, ours, holds)


def share(of: str, holds: Iterable[bool]) -> Judged:
    """The number of cases in which it holds, and whether in all.

    Raises:
        ValueError: there are none.
    """
    cases = list(holds)
    if not cases:
        raise ValueError(f"expected {of}, got none")
    return f"{sum(cases)} of {len(cases)} {of}", all(cases)


def fastest(rows: Iterable[Row], **wanted: Any) -> float:
    """The shortest median of the rows with these columns, over layouts.

    Raises:
        ValueError: there are none.
    """
    return min(float(row["median_us"]) for row in rows if all(row.get(name) == value for name, value in wanted.items()))
