from lamina.report.plain_table import Line, plain_table, reasons

from .test_table import cells, text


def test_dispensable_columns_go_in_order_and_only_as_needed() -> None:
    lines = [Line(["aaaa", "bbbbbbbb", "cccccccc", "dd"])]
    headings = ["a", "b", "c", "d"]
    kept = {
        width: cells(plain_table(headings, lines, width=width, dispensable=("c", "b")))[1]
        for width in (33, 32, 22, 21, 5)
    }
    assert kept == {33: headings, 32: ["a", "b", "d"], 22: ["a", "b", "d"], 21: ["a", "d"], 5: ["a", "d"]}


def test_a_table_that_fits_is_not_cut() -> None:
    table = plain_table(["a", "b"], [Line(["xxxx", "yyyy"])], width=13)
    assert "xxxx   yyyy" in text(table, 13)


def test_wide_characters_count_twice() -> None:
    table = plain_table(["a", "b"], [Line(["畳み込み", "bb"])], width=14, dispensable=("b",))
    assert cells(table)[1] == ["a"] or "畳み込み   bb" in text(table, 14)


def test_one_reason_is_said_once() -> None:
    named = [(f"conv{place}", "failed: x") for place in range(8)] + [("fc", "failed: y")]
    named *= 2  # such as for each batch size
    assert reasons(named) == ["conv0, conv1, conv2, conv3, conv4, conv5 and 2 more failed: x", "fc failed: y"]


def test_times_in_sentences_are_spelled_as_those_of_cells() -> None:
    line = Line(["9.00 µs", "9 us < dense 10.5 us"])
    table = plain_table(["time", "reason"], [line], caption=["1 of 2 us in us_east"])
    assert [cell.plain for column in table.columns for cell in column.cells] == ["9.00 µs", "9 µs < dense 10.5 µs"]
    assert str(table.caption) == "1 of 2 µs in us_east"
