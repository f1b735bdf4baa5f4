"""lamina sweep: a grid of designs, as a table, JSON and CSV."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import Lamina
from typer.testing import CliRunner, Result

from lamina.cli.sweep import memory_bytes, sweep
from lamina.cli.sweep_cells import VERBS, command_of
from lamina.pipeline.sweep.stored import CellRun
from lamina.record import Run
from lamina.store import open_store

GRID = """
[base]
network = "lenet5"
batch = 1
device.cu.count = 2
[axes]
device.l2.bytes = [2097152, 1048576]
device.dram.latency = [100.0, 400.0]
"""
Sweep = Callable[..., Result]


@pytest.fixture
def swept(lamina: Lamina, tmp_path: Path) -> Sweep:
    """``swept(text, "--format", "json")`` sweeps a grid in this process, with the command line's own store."""
    app = typer.Typer()
    app.command()(sweep)

    def run(text: str, *words: str) -> Result:
        (tmp_path / "grid.toml").write_text(text)
        return CliRunner().invoke(app, [str(tmp_path / "grid.toml"), "--workers", "1", *words])

    return run


def test_designs_are_compared_and_the_front_is_marked(swept: Sweep) -> None:
    result = swept(GRID, "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    slow, fast = document["designs"][3], document["designs"][2]
    assert document["designs"][0]["speedup"] == 1 and slow["speedup"] < fast["speedup"]
    assert [one["device.l2.bytes"] for one in document["designs"]] == [2097152, 2097152, 1048576, 1048576]
    assert fast["front"] and not slow["front"]
    assert len(document["layers"]) == 8
    assert document["layers"][0]["config"]["device.l2.bytes"] == 2097152
    assert sum(one["microseconds"] for one in document["layers"][:2]) == pytest.approx(
        document["designs"][0]["microseconds"]
    )


def test_what_was_swept_is_shown_again_without_simulating(swept: Sweep) -> None:
    assert "0 of 8 results were stored before" in swept(GRID, "--format", "json").stderr
    table = swept(GRID)
    assert "8 of 8 results were stored before" in table.stderr
    assert "front" in table.stdout and "1.000x" in table.stdout and " note " not in table.stdout
    rows = list(csv.DictReader(swept(GRID, "--format", "csv").stdout.splitlines()))
    assert len(rows) == 4 and rows[0]["speedup"] == "1.0" and rows[0]["device.dram.latency"] == "100.0"


def test_the_designs_are_drawn(swept: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "pareto.svg"
    result = swept(GRID, "--figure", str(path), "--format", "csv")
    assert result.exit_code == 0 and f"figure: {path}" in result.stderr
    assert "lenet5, batch 1" in path.read_text() and "SRAM" in path.read_text()
    refused = swept(GRID, "--figure", str(tmp_path / "pareto.pdf"))
    assert refused.exit_code == 2 and "ends in .png or .svg" in refused.stderr
    nothing = swept(GRID + "[baseline]\ndevice.dram.bytes = 200000\n", "--figure", str(tmp_path / "none.svg"))
    assert nothing.exit_code == 1 and "not drawn: no design has a speedup" in nothing.stderr
    assert not (tmp_path / "none.svg").exists()


def test_a_dry_run_only_lists_designs(swept: Sweep) -> None:
    result = swept(GRID, "--dry-run")
    heading, *lines = result.stdout.splitlines()
    assert result.exit_code == 0 and heading == "grid: 4 designs, 8 layers to simulate"
    assert lines == [
        f"  network=lenet5 batch=1 device.l2.bytes={size} device.dram.latency={latency}: 2 layers"
        for size in (2097152, 1048576)
        for latency in (100.0, 400.0)
    ]
    assert "0 of 8 results were stored before" in swept(GRID).stderr


def test_a_design_that_does_not_fit_exits_one_with_its_reason(swept: Sweep) -> None:
    result = swept(GRID.replace("device.dram.latency = [100.0, 400.0]", "device.dram.bytes = [4294967296, 200000]"))
    assert result.exit_code == 1
    assert "dram.bytes" in result.stdout and "note" in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[axes]", "[axes", "expected TOML"),
        ("[2097152, 1048576]", "1", "device.l2.bytes = 1: expected a list"),
        ("[2097152, 1048576]", "[3]", "device: l2.bytes = 3: expected"),
        ("dram.latency", "dram.latence", "did you mean 'dram.latency'"),
        ('"lenet5"', '"lenet6"', "did you mean 'lenet5'"),
        ("[100.0, 400.0]", "[nan]", "finite"),
    ],
)
def test_bad_grids_are_refused_by_key(swept: Sweep, old: str, new: str, message: str) -> None:
    result = swept(GRID.replace(old, new))
    assert result.exit_code == 2 and message in result.stderr, result.output


BENCH = """
verb = "bench"
filter = ["(layer == 'none') != (batch_size * 2 < 8)"]
[base]
model = "lenet5"
device = "cpu"
phase = "forward"
repeat = 2
[axes]
layer = ["classifier.4", "none"]
batch_size = [1, 64]
"""


def test_cells_of_a_verb_are_run_shown_and_found_again(swept: Sweep, lamina: Lamina) -> None:
    result = swept(BENCH, "--format", "json")
    assert result.exit_code == 1, result.output
    done, failed = json.loads(result.stdout)
    assert done["state"] == "done" and done["layer"] == "classifier.4" and done["batch_size"] == 1
    assert failed["state"] == "failed" and failed["batch_size"] == 64 and "'none'" in failed["reason"]
    assert "failed: model=lenet5" in result.stderr and "0 of 2 cells were stored before" in result.stderr
    assert "classifier.4" in lamina("runs", "show", done["run"]).stdout
    whole = json.loads(lamina("sweep", "status", "--format", "json").stdout)
    assert (whole["total"], whole["done"], whole["failed"], whole["pending"]) == (2, 1, 1, 0)
    again = swept(BENCH.replace(', "none"]', "]"))
    assert again.exit_code == 0 and "1 of 1 cells were stored before" in again.stderr
    assert "grid (run" in (shown := lamina("sweep", "status", "grid")).stdout and "1 done, 0 failed" in shown.stdout
    assert lamina("sweep", "status", "--format", "csv").stdout.startswith("model,device,phase")


def test_no_setting_is_hidden_by_an_outcome(lamina: Lamina, tmp_path: Path) -> None:
    limits = {"a": 0.25, "b": 0.125}
    sweep = Run("sweep", "sweep", "grid", "lamina sweep g.toml", "2026-01-02", "f", {"keys": [*limits]}, {})
    with open_store(tmp_path / "lamina.db") as store:
        store.begin(sweep)
        for key, seconds in limits.items():
            cell = {"key": key, "settings": {"seconds": seconds}, "state": "done", "seconds": 9.0}
            store.begin(replace(sweep, id=key, verb="bench", config={"sweep": cell}))
    cells = json.loads(lamina("sweep", "status", "--format", "json").stdout)["cells"]
    assert [(cell["seconds"], cell["cell_seconds"]) for cell in cells] == [(0.25, 9.0), (0.125, 9.0)]
    table = lamina("sweep", "status").stdout
    assert "seconds" in table and "0.25" in table and "0.125" in table and "9.0 s" in table
    outcomes = CellRun("key", {}, "done").to_dict()
    assert [verb for verb in VERBS if command_of(verb, "grid").options.keys() & outcomes] == []


def test_a_dry_run_lists_cells_by_what_differs(swept: Sweep) -> None:
    assert swept(BENCH, "--dry-run").stdout.splitlines() == [
        "grid: 2 cells of lamina bench",
        "  layer=classifier.4 batch_size=1",
        "  layer=none batch_size=64",
    ]
    alone = swept(BENCH.replace(', "none"]', "]"), "--dry-run").stdout
    assert "\n  model=lenet5 device=cpu phase=forward repeat=2 layer=classifier.4 batch_size=1\n" in alone


def test_the_status_of_simulations_counts_layers(swept: Sweep, lamina: Lamina) -> None:
    assert lamina("sweep", "status").exit_code == 2
    swept(GRID)
    assert "8 done, 0 failed, 0 pending of 8" in lamina("sweep", "status").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "rai"), "--engine: 'rai' is unknown: did you mean 'ray'"),
        (("--engine", "local:3"), "local has no address"),
        (("--memory-limit", "8X"), "expected a size such as 8G or 500M, got '8X'"),
        (("--memory-limit", "0"), "expected a size such as 8G"),
        (("--figure", "a.svg"), "draws simulated designs"),
        (("other.toml",), "expected one grid"),
    ],
)
def test_bad_options_are_refused(swept: Sweep, words: tuple[str, ...], message: str) -> None:
    result = swept(BENCH, *words)
    assert result.exit_code == 2 and message in result.stderr, result.output


def test_bad_verbs_are_refused(swept: Sweep) -> None:
    result = swept(BENCH.replace('"bench"', '"bensh"'))
    assert result.exit_code == 2 and "did you mean 'bench'" in result.stderr


@pytest.mark.parametrize(("text", "size"), [("", None), ("8G", 8 * 2**30), ("1.5MiB", 3 * 2**19), ("500k", 512000)])
def test_sizes_of_memory(text: str, size: int | None) -> None:
    assert memory_bytes(text) == size
