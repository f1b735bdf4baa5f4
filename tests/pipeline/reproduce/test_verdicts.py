"""Verdicts follow from values: every word, and what is not counted as a result."""

from typing import Any

import pytest

from lamina.pipeline.reproduce.every import Line, Summary
from lamina.pipeline.reproduce.statements import STATEMENT
from lamina.pipeline.reproduce.verdicts import mean_ratio, of_entry, of_row
from lamina.record.beside import Beside
from lamina.spec.published import Published, PublishedValue


def beside(published: float | str, ours: float | None, agrees: bool | None = None, **fields: Any) -> Beside:
    value = PublishedValue(layer="a", quantity=fields.pop("quantity", "q"), value=published, **{"unit": "x"} | fields)
    held = value.agrees(ours) if agrees is None and ours is not None else agrees
    return Beside(value, "none" if ours is None else f"{ours:g}", held, ours)


def entry(**fields: Any) -> Published:
    return Published(id="a", title="t", paper="p", place="x", recipe="r", figures=("f",), **fields)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (beside(2.0, 2.0), "reproduced"),
        (beside(2.0, 2.19), "reproduced"),
        (beside(2.0, 1.81), "reproduced"),
        (beside(2.0, 2.3), "exceeded"),
        (beside(2.0, 1.7), "not reproduced: 1.7, printed 2.0 x"),
        (beside(2.0, 1.7, better="lower"), "exceeded"),
        (beside(2.0, 2.3, better="lower"), "not reproduced: 2.3, printed 2.0 x"),
        (beside(70, 90.0, unit="%"), "not reproduced: 90, printed 70 %"),
        (beside(1.5, 1.46, bound="at least"), "reproduced"),
        (beside(1.5, 1.4, bound="at least"), "not reproduced: 1.4, printed at least 1.5 x"),
        (beside(1.5, 9.0, bound="at least"), "reproduced"),
        (beside(1.0, 1.2, bound="at most"), "not reproduced: 1.2, printed at most 1.0 x"),
        (beside(1.0, 0.5, bound="at most"), "reproduced"),
        (beside(2.0, None), "not measured: none"),
        (beside(2.0, 1.0, not_applicable="a chip"), "not applicable: a chip"),
        (beside("it holds", None, True, quantity=STATEMENT), "reproduced"),
        (beside("it holds", None, False, quantity=STATEMENT), "not reproduced: none"),
        (beside("it holds", None, quantity=STATEMENT), "not measured: none"),
        (beside("3x3", None, False), "not reproduced: none"),
    ],
)
def test_verdicts_on_rows(row: Beside, word: str) -> None:
    assert str(of_row(row)) == word


def test_bars_without_a_printed_value_have_no_verdict() -> None:
    assert of_row(beside("drawn only", None)) is None


def test_one_failing_or_missing_row_fails_the_entry() -> None:
    good, better, bad, none = beside(2.0, 2.0), beside(2.0, 3.0), beside(2.0, 1.0), beside(2.0, None)
    assert str(of_entry(entry(), [good, better])) == "reproduced"
    assert str(of_entry(entry(), [better])) == "exceeded"
    assert str(of_entry(entry(), [good, bad])) == "not reproduced: 1 of 2: a: 1, printed 2.0 x"
    assert str(of_entry(entry(), [good, none])) == "not reproduced: 1 of 2: a: none"
    assert str(of_entry(entry(), [bad] * 4)).endswith("; and 2 more")
    assert str(of_entry(entry(), [none])) == "not measured: none"
    assert str(of_entry(entry(), [])) == "not measured: no rows"
    assert str(of_entry(entry(unrecorded="two GPUs"), [none])) == "not applicable: two GPUs"
    assert str(of_entry(entry(unrecorded="two GPUs"), [bad])).startswith("not reproduced")
    assert str(of_entry(entry(not_applicable="a chip"), [good])) == "not applicable: a chip"


def test_settings_are_counted_apart_and_never_reproduced() -> None:
    settings = entry(configuration=True)
    verdict = of_entry(settings, [beside(2, 2.0, unit=""), beside(2, 3.0, unit="")])
    assert str(verdict) == "settings: 1 of 2 equal"
    good = beside(2.0, 2.0)
    summary = Summary(
        (
            Line(settings, (good,), "counted", verdict),
            Line(entry(), (good,), "measured", of_entry(entry(), [good])),
            Line(entry(), (), "", of_entry(entry(), [])),
        )
    )
    assert summary.counts["reproduced"] == 1 and len(summary.results) == 2
    assert "1 of 2 settings equal" in str(summary) and "1 entries without a measured row" in str(summary)
    assert [line.ratio for line in summary.lines] == [None, 1.0, None]
    assert summary.to_dict()["without a measured row"] == ["a"]


def test_ratios_are_averaged_geometrically() -> None:
    assert mean_ratio([beside(1.0, 4.0), beside(4.0, 1.0), beside("drawn only", None)]) == 1.0
    assert mean_ratio([]) is None
