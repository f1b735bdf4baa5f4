from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import SpecError, UsageError
from lamina.spec.grid import Grid, parse_grid, read_grid, value_of

GOOD = """
name = "caches"
[base]
network = "lenet5"
device.preset = "mi6"
[axes]
batch = [1, 2]
device.l2.bytes = [1048576, 2097152]
device.dram.mode = ["ideal", "banked"]
[baseline]
device.l2.bytes = 2097152
"""


def test_axes_are_combined_each_with_each() -> None:
    grid = parse_grid(GOOD, "g.toml")
    assert grid.name == "caches" and len(grid) == 8
    assert grid.baseline == {"device.l2.bytes": 2097152}
    made = list(grid.configurations())
    values = product([1, 2], [1048576, 2097152], ["ideal", "banked"])
    keys = ("batch", "device.l2.bytes", "device.dram.mode")
    base = {"network": "lenet5", "device.preset": "mi6"}
    assert made == [base | dict(zip(keys, each, strict=True)) for each in values]


def test_a_name_may_be_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('[axes]\r\nnetwork = ["lenet5"]\r\n')
    assert read_grid(path) == Grid("small", {}, {"network": ("lenet5",)})
    with pytest.raises(UsageError, match="cannot be read"):
        read_grid(tmp_path / "none.toml")
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(SpecError, match="UTF-8"):
        read_grid(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes", "g.toml: expected TOML"),
        ("", r"there is no \[axes\]"),
        ("axis = 1\n[axes]\nbatch = [1]", "line 1: key 'axis' is unknown: did you mean 'axes'"),
        ("[axes]\nbatch = 16", "line 2: batch = 16: expected a list"),
        ("[axes]\nbatch = []", r"line 2: batch = \[\]: expected a list"),
        ("[axes]\nbatch = [[1]]", r"batch = \[\[1\]\]: expected a list of strings"),
        ("[axes]\nbatch = [{a = 1}]", "expected a list of strings"),
        ("[axes]\nbatch = [1, 2, 1]", "line 2: batch: expected each value once, got 1 again"),
        ("[axes]\ndevice.l2.bytes = [1]\nbatch = 1", "line 3: batch = 1"),
        (
            "[base]\nbatch = [1]\n[axes]\nlayer = ['a']",
            r"line 2: batch = \[1\]: .*put it into \[axes\]",
        ),
        ("[base]\nwhen = 2020-01-01\n[axes]\nlayer = ['a']", "line 2: when = .*expected one string"),
        ("[base]\nbatch = 1\n[axes]\nbatch = [1]", r"line 4: batch: is in \[base\] and in \[axes\]"),
        ("base = 1\n[axes]\nbatch = [1]", r"line 1: base = 1: expected a table \[base\]"),
        ("axes = 1", r"line 1: axes = 1: expected a table \[axes\]"),
        ("name = ''\n[axes]\nbatch = [1]", "line 1: name = '': expected a non-empty string"),
        ("[axes]\nbatch = [1]\n[baseline]\nlayer = 'a'", "line 4: baseline.layer: the baseline has the same workload"),
        (f"[axes]\na = {list(range(400))}\nb = {list(range(400))}", "at most 100000 configurations, got 160000"),
        ("[axes]\nbatch = [" + "1" * 5000 + "]", "a number is too long|expected TOML"),
        ("a = " + "[" * 5000, "expected TOML"),
    ],
)
def test_faults_are_reported(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_grid(text, "g.toml")


def test_all_faults_come_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_grid("[base]\nx = [1]\n[axes]\nbatch = 1\nlayer = []\n", "g.toml")
    assert [fault.line for fault in caught.value.faults] == [2, 4, 5]


def test_values_of_different_kinds_differ() -> None:
    assert parse_grid("[axes]\nx = [1, 1.0, true, '1']", "g").axes["x"] == (1, 1.0, True, "1")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        grid = parse_grid(text, "g.toml")
    except SpecError:
        return
    assert len(list(grid.configurations())) == len(grid)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.5", 1.5), ("true", True), ("'a'", "a"), ("banked", "banked"), ("[1]", "[1]"), ("1\nb=2", "1\nb=2")],
)
def test_command_lines_may_leave_out_quotes(text: str, value: object) -> None:
    assert value_of(text) == value and type(value_of(text)) is type(value)
