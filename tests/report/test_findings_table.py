from io import StringIO

from rich.console import Console
from rich.table import Table

from lamina.record import Finding
from lamina.report.findings_table import counters_table, findings_table, kernels_table


def text(table: Table, width: int = 160) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def finding(claim: str = "[bold] takes all", layer: str | None = "conv1") -> Finding:
    return Finding(layer, "forward", "a rule", claim, {}, 0.8)


def test_findings_show_what_is_at_stake_and_how_many_are_left() -> None:
    shown = text(findings_table([(finding(), 0.125), (finding("more", None), 0.0)], "title", more=7))
    assert "12%" in shown and "80%" in shown and "[bold] takes all" in shown
    assert "7 more findings" in shown and shown.startswith("title")
    assert "more findings" not in text(findings_table([(finding(), 0.1)]))


def test_a_narrow_terminal_keeps_the_findings_whole() -> None:
    claim = "a long sentence " * 6 + "end"
    shown = text(findings_table([(finding(claim), 0.125)], width=50), 50)
    assert "end" in shown and "a rule" not in shown and "12%" in shown


def test_kernels_show_both_lists() -> None:
    rows = [
        ("conv1", "forward", "changed", 10.0, 5.0, ("old",), ("new", "more")),
        ("x", "forward", "same", 1, 1, (), ()),
    ]
    shown = text(kernels_table(rows, "a", "b"))
    assert "- old" in shown and "+ new" in shown and "+ more" in shown and "1 changed, 1 same" in shown


def test_counters_show_what_is_missing_as_nothing() -> None:
    rows = [("conv1", "forward", "dram", "%", 10.0, 15.0, 1.5), ("conv1", "forward", "l2", "%", None, 3.0, None)]
    shown = text(counters_table(rows, "a", "b"))
    assert "1.50x" in shown and "None" not in shown
