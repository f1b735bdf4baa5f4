"""Statements about data reuse and memory access distance, from counted rows."""

from lamina.pipeline.reproduce.measured import locality
from lamina.pipeline.reproduce.measured.judging import Scope, judge
from lamina.spec.published import entry


def test_every_statement_is_decided_and_o2_reads_farther_in_the_forward_pass() -> None:
    rows = locality.counted(Scope("cpu"))
    judged = judge(entry("circulant-section-7.3.2"), locality.MEASUREMENT, rows)
    assert [row.agrees for row in judged] == [True] * 5 + [False, True]
    closer = locality.beside("md_read", lambda a, b: a < b, "o2", "o1", "backward_data", "backward_weight")
    assert closer(rows)[1] and not locality.beside("md_read", lambda a, b: a < b, "o2", "o1", "forward")(rows)[1]


def test_rules_can_fail() -> None:
    rows = [dict(row, dr=3) if row["impl"] == "o1" else row for row in locality.counted(Scope("cpu"))]
    text, holds = locality.MEASUREMENT.statements["o1_reuses_by_equation_7_5"](rows)
    assert not holds and text.startswith("0 of 27")
