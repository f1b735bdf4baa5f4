"""Cells: command lines of a grid, keyed by what decides their results."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.cli.sweep_cells import command_of, complaint
from lamina.errors import SpecError, UsageError
from lamina.pipeline.sweep.cells import Cell, cells
from lamina.spec.grid import parse_grid, read_grid

BENCH = command_of("bench", "g")


def made(text: str, verb: str = "bench") -> tuple[Cell, ...]:
    return cells(parse_grid(f"verb = '{verb}'\n{text}", "g"), command_of(verb, "g"), "g", complaint)


def test_a_cell_is_a_command_line() -> None:
    first, second = made("[base]\nmodel = 'lenet5'\ncheck = false\nset.N = 4\n[axes]\nbatch_size = [16, 32]")
    assert first.words == ("bench", "--model", "lenet5", "--no-check", "--set", "N=4", "--batch-size", "16")
    assert second.words[-1] == "32" and first.key != second.key
    (cell,) = made("seeds = [7]\n[base]\nmodel = 'lenet5'\ndata = 'fashion-mnist'\naugment = false\nlr = 0.1", "train")
    assert cell.words == ("train", "lenet5", "--data", "fashion-mnist", "--learning-rate", "0.1", "--seed", "7")


def test_the_key_is_that_of_the_content() -> None:
    (one,) = made("[base]\nmodel = 'lenet5'\n[axes]\nbatch_size = [16]\ndtype = ['bf16']")
    (same,) = made("[base]\nprecision = 'bf16'\n[axes]\nbatch-size = ['16']\nmodel = ['lenet5']")
    assert one.key == same.key
    assert len(made("[base]\nmodel = 'lenet5'\n[axes]\nbatch_size = [16, '16']")) == 1
    (spec,) = made("[axes]\nspec = ['lenet5']\nbatch_size = [16]")
    (profiled,) = made("[axes]\nspec = ['lenet5']\nbatch_size = [16]", "profile")
    assert spec.settings == profiled.settings and spec.key != profiled.key


@pytest.mark.parametrize("named", ["net.toml", "net.py:build"])
def test_a_changed_file_is_another_cell(tmp_path: Path, named: str) -> None:
    path = tmp_path / named.partition(":")[0]
    keys = set()
    for text in ("a", "b", "a"):
        path.write_text(text)
        (cell,) = made(f"[axes]\nmodel = ['{tmp_path / named}']")
        keys.add(cell.key)
    assert len(keys) == 2


@given(st.permutations([("batch_size", 16), ("precision", "bf16"), ("seed", 3), ("spec", "lenet5")]))
def test_the_order_of_settings_is_nothing(settings: list[tuple[str, int | str]]) -> None:
    assert Cell(BENCH, dict(settings)).key == Cell(BENCH, dict(sorted(settings))).key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[axes]\nbatch_sise = [1]", "'batch_sise' is no option of lamina bench: did you mean 'batch_size'"),
        ("[axes]\nstore = ['a.db']", "a sweep sets this option itself"),
        ("[axes]\noutput = ['a']", "a sweep sets this option itself"),
        ("[base]\ndtype = 'bf16'\n[axes]\nprecision = ['bf16']", "'dtype' and 'precision' are the same option"),
        ("[axes]\nmemory = ['x']", "memory=x: expected true or false"),
        ("[axes]\nrepeat = ['x', 'y']", "--repeat x: Invalid value for '--repeat'.*--repeat y: Invalid"),
    ],
)
def test_faults_are_reported_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){message}"):
        made(text)


def test_a_missing_argument_is_reported() -> None:
    with pytest.raises(SpecError, match="Missing argument 'SPEC'"):
        made("[axes]\nepochs = [1]\ndata = ['synthetic']", "train")


def test_verbs_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="g: verb 'bensh' cannot be swept: did you mean 'bench'"):
        command_of("bensh", "g")
    with pytest.raises(UsageError, match="'runs' cannot be swept"):
        command_of("runs", "g")
    assert command_of("what_if", "g").words == ("what-if",)


def test_the_example_is_a_grid() -> None:
    path = Path(__file__).parents[3] / "examples" / "bench_grid.toml"
    made = cells(read_grid(path), BENCH, "g", complaint)
    assert len(made) == 10 and {cell.settings["data"] for cell in made} == {"fashion-mnist", "synthetic"}
