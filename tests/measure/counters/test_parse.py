"""Real output of ncu, tables written by hand in its form, and tables that are damaged."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError
from lamina.measure.counters import LAUNCH, Profiled, parse, select
from lamina.measure.counters.parse import number, range_names, read

DATA = Path(__file__).parent / "data"
ALEXNET = (DATA / "alexnet_h200.csv").read_text()
TIME, HIT = "gpu__time_duration.sum", "l1tex__t_sector_hit_rate.pct"
RANGES = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def table(*kernels: dict[str, str], units: dict[str, str] | None = None) -> str:
    """A raw page, every cell quoted, as ncu writes it."""
    columns = ["ID", RANGES, "Kernel Name", "Block Size", "Grid Size", TIME, HIT]
    usual = {"Kernel Name": "k", "Block Size": "(32, 1, 1)", "Grid Size": "(1, 1, 1)", TIME: "1", HIT: "2"}
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(columns)
    writer.writerow([({TIME: "ns", HIT: "%"} | (units or {})).get(column, "") for column in columns])
    writer.writerows([[(usual | kernel).get(column, "") for column in columns] for kernel in kernels])
    return f'==PROF== Connected to process 1 (x)\nhello, "ID"\n{stream.getvalue()}'


def test_alexnet_on_an_h200():
    kernels = parse(ALEXNET, [TIME, HIT, "sm__no_such.sum"])
    assert len(kernels) == 15
    first = kernels[0]
    assert (first.range, first.grid, first.block) == ("lamina/0/forward", (1568, 1, 128), (256, 1, 1))
    assert first.name.startswith("void cudnn::nchwToNhwcKernel<float, float, float, 0, 1, 2>(")
    assert first.metrics[TIME] == (262_272.0, "ns")
    assert first.metrics["sm__no_such.sum"] == (None, "")
    assert first.metrics["launch__occupancy_limit_registers"] == (8.0, "block")
    assert first.passes == 13
    assert [one.range for one in kernels].count("lamina/0/forward") == 5
    assert [one.name[:50] for one in kernels if one.range is None] == [
        "void at::<unnamed>::distribution_elementwise_grid_"
    ]


def test_only_requested_metrics_are_kept():
    names = {TIME, *(one.name for one in LAUNCH)}
    assert {frozenset(one.metrics) for one in parse(ALEXNET, [TIME])} == {frozenset(names)}


def test_ranges_inside_ranges():
    kernels = parse((DATA / "nested_ranges_h200.csv").read_text(), [])
    assert [one.range for one in kernels] == [
        "lamina/0/forward", "lamina/0/forward", "lamina/1/forward", "lamina/9/backward_data", "lamina/9/backward_data"
    ]  # fmt: skip
    columns = next(cells for _, cells in read((DATA / "nested_ranges_h200.csv").read_text()).rows())
    pushed = next(cell for name, cell in columns.items() if "Push/Pop" in name)
    assert range_names(pushed) == ("outer:0, a", "inner")


def test_without_lamina_ranges_the_innermost_of_the_thread_counts():
    text = (DATA / "nested_ranges_h200.csv").read_text().replace("lamina/", "other/")
    assert [one.range for one in parse(text, [])] == [
        "inner", "inner", "inner", "other/9/backward_data", "other/9/backward_data"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0), ("1,692.37", 1692.37), ("666,769,945,021.38", 666769945021.38), ("-3.5", -3.5), ("1e3", 1000.0),
        ("", None), (" n/a ", None), ("nan", None), ("-nan", None), ("inf", None), ("(!) nan", None), ("(!) 3", None),
    ],
)  # fmt: skip
def test_values_are_parsed(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["PolicySpread", "1,5", "12abc", "1.568,00", "0x10", "١"])
def test_missing_values(text):
    with pytest.raises(ValueError, match="expected a number"):
        number(text)


@given(st.floats(-1e15, 1e15))
def test_thousands_separators_are_parsed(value):
    assert number(f"{value:,.2f}") == float(f"{value:.2f}")


sizes = st.tuples(*[st.integers(1, 2**31 - 1)] * 3)
# ncu prints names and ranges on one line and does not escape quotes in ranges.
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters='"'), min_size=1)
readings = st.none() | st.integers(0, 10**15)


@given(st.lists(st.tuples(st.none() | words, words, sizes, sizes, readings, readings), max_size=5))
def test_printed_tables_are_parsed_back(kernels):
    text = table(
        *(
            {
                RANGES: "" if name is None else f' "7:<default domain>:{name}:none:none:none:none:none:none" ',
                "Kernel Name": kernel,
                "Grid Size": str(grid),
                "Block Size": str(block),
                TIME: "n/a" if time is None else f"{time:,}",
                HIT: "" if hit is None else f"{hit:,}",
            }
            for name, kernel, grid, block, time, hit in kernels
        )
    )
    nothing = {one.name: (None, "") for one in LAUNCH}
    assert parse(text, [TIME, HIT]) == tuple(
        Profiled(name, kernel, grid, block, {TIME: (time, "ns"), HIT: (hit, "%"), **nothing})
        for name, kernel, grid, block, time, hit in kernels
    )


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("usecond", "1.5", (1500.0, "ns")), ("us", "1.5", (1500.0, "ns")), ("ms", "2", (2e6, "ns")),
        ("second", "1", (1e9, "ns")), ("Gbyte/s", "3", (3e9, "byte/s")), ("Kbyte/block", "4", (4000.0, "byte/block")),
        ("Mhz", "7", (7e6, "hz")), ("sector", "7", (7.0, "sector")), ("", "7", (7.0, "")),
    ],
)  # fmt: skip
def test_units_are_converted_to_base_units(unit, value, expected):
    (one,) = parse(table({TIME: value}, units={TIME: unit}), [TIME])
    found, base = one.metrics[TIME]
    assert base == expected[1]
    assert found == pytest.approx(expected[0])


def test_sizes_without_a_column_come_from_launch_metrics():
    sizes = [f'"launch__{what}_dim_{axis}"' for what in ("grid", "block") for axis in "xyz"]
    lines = ['"ID","Kernel Name",' + ",".join(sizes), ",".join(['""'] * 8), '"0","k","1,568","2","3","32","1","1"']
    (one,) = parse("\n".join(lines), [])
    assert (one.grid, one.block, one.range) == ((1568, 2, 3), (32, 1, 1), None)


@given(st.integers(0, len(ALEXNET) - 1))
def test_a_truncated_file_is_rejected_or_loses_whole_kernels(end):
    complete = parse(ALEXNET, [TIME])
    try:
        found = parse(ALEXNET[:end], [TIME])
    except SpecError:
        return
    assert found == complete[: len(found)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table from 'ncu --csv --page raw', found none"),
        ("a,b\n1,2\n", "found none"),
        ("==ERROR== Something broke\n", "found none: ==ERROR== Something broke"),
        ('"ID","Kernel Name","Section Name","Metric Name"\n', "line 1: expected ncu's raw page"),
        ('"ID","Name"\n', "line 1: expected ncu's raw page"),
        ('"ID","Kernel Name"\n', "line 1: expected units below the columns"),
        (table({}).replace('"(1, 1, 1)"', '"(1, 1)"'), "line 5: Grid Size: expected \\(x, y, z\\), got '\\(1, 1\\)'"),
        (table({TIME: "many"}), "line 5: gpu__time_duration.sum: expected a number"),
        (table({}, {}) + '"2","","k"\n', "line 7: the line is truncated or not part of the table \\(3 of 7 columns\\)"),
        (table({})[:-3], "line 5: the line is truncated"),
        (table({}) + "application output\n", "line 6: the line is truncated"),
    ],
)
def test_invalid_lines_are_reported_by_number(text, message):
    with pytest.raises(SpecError, match=message):
        parse(text, [TIME], "file.csv")


def test_ncu_s_own_lines_may_stand_anywhere():
    text = table({}, {}).replace(
        '"(32, 1, 1)","(1, 1, 1)","1","2"\n', '"(32, 1, 1)","(1, 1, 1)","1","2"\n==PROF== x\n\n'
    )
    assert len(parse(text, select(["full"]))) == 2
