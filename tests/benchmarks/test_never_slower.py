"""The benchmark that no converted layer is slower: its rows, and its summary of rows that are known."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import never_slower
from benchmarks.results import Row
from lamina.accelerate import CELLS, convert
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant.activation_fusion import fuse_activations
from lamina.accelerate.select import DENSE, observe
from lamina.record import ConvertedLayer, Timing
from lamina.record.selection import Selection

CPU = torch.device("cpu")
SMALL = ("--networks", "lenet5", "--precisions", "fp32", "--methods", "fused", "--modes", "eager")


@pytest.fixture(autouse=True)
def two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(never_slower, "ROUNDS", 2)


@pytest.mark.parametrize("method", ["eliminated", "fused"])
def test_rows_fit_the_schema_and_say_what_ran(method: str) -> None:
    rows = list(never_slower.measured(never_slower.SMOKE[0], "fp32", "eager", method, CPU))
    for row in rows:
        Row.model_validate(row)
        assert row["impl"] == method and row["mode"] == "eager"
        assert (row["speedup"] == 1.0) >= (row["executed_impl"] == DENSE)
    layers = [row for row in rows if row["phase"] == "step"]
    assert layers and all(row["rel_error"] < 1e-4 for row in layers) and rows[-1]["phase"] == "end_to_end"
    names = [row["layer"] for row in layers]
    assert len(names) == len(set(names)) and all(row["times_us"]["dense"] > 0 for row in layers)


def test_a_layer_whose_network_stayed_dense_counts_as_dense() -> None:
    """A kernel can be selected for it, and the network as a whole be no faster."""
    selected = "weight-only[impl=kernel]"
    choice = Selection(selected, "faster", {DENSE: 3.0, selected: 1.0}, "eager")
    layer = ConvertedLayer("0", "Linear", "weight-only", 20, 20, "the network as a whole is no faster", choice)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    call = observe(model, ["0"], torch.zeros(2, 4))["0"]

    def clock(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        return dict.fromkeys(steps, Timing("cpu", "-", 3.0, 2.0, 4.0, 9))

    row = never_slower.again(layer, ["0"], model, model, call, "eager", False, clock)
    assert row["executed_impl"] == DENSE and row["speedup"] == 1.0 and row["times_us"] == choice.times_us


def test_dense_computes_the_activations_that_a_circulant_layer_does() -> None:
    dense = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    model, _ = convert(copy.deepcopy(dense), Circulant(4))
    fuse_activations(model)
    assert model[0].activation == "relu"
    choice = Selection("circulant", "faster", {DENSE: 3.0, "circulant": 1.0}, "eager")
    layer = ConvertedLayer("0", "Linear", "circulant", 72, 24, None, choice)
    call = observe(dense, ["0"], torch.randn(5, 8))["0"]

    def clock(steps: Mapping[str, Callable[[], object]]) -> dict[str, Timing | Exception]:
        for step in steps.values():
            outputs = step()
            assert isinstance(outputs, torch.Tensor) and (outputs >= 0).all()
        return dict.fromkeys(steps, Timing("cpu", "-", 3.0, 2.0, 4.0, 9))

    row = never_slower.again(layer, ["0"], model, dense, call, "eager", False, clock)
    assert row["executed_impl"] == "circulant" and row["rel_error"] < 1e-5


def test_no_cell_starts_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for limit, files in (("0", 0), ("600", 1)):
        monkeypatch.setattr("sys.argv", ["never_slower", *SMALL, "--output", str(tmp_path), "--limit", limit])
        never_slower.main()
        found = [json.loads(one.read_text()) for one in tmp_path.iterdir()]
        assert len(found) == files
    assert found[0]["provenance"]["command"].endswith("--methods fused --modes eager --limit 600.0")
    said = capsys.readouterr().out
    assert "lenet5 fp32 eager fused: not started, the time limit is over" in said and ": cell of " in said


def test_a_resumed_run_measures_the_cells_that_are_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> list[dict[str, Any]]:
        monkeypatch.setattr("sys.argv", ["never_slower", *SMALL, "--output", str(tmp_path), *words])
        never_slower.main()
        (path,) = tmp_path.glob("never_slower_fused_*")
        return list(json.loads(path.read_text())["rows"])

    monkeypatch.setattr("benchmarks.source.commit", lambda: "c0ffee0")
    first = run()
    cut = [{**row, "precision": "tf32"} for row in first[:-1]]  # a cell without its whole step
    document = json.loads(next(tmp_path.iterdir()).read_text()) | {"rows": first + cut}
    (tmp_path / "earlier.json").write_text(json.dumps(document))
    monkeypatch.setattr("benchmarks.source.commit", lambda: "c0ffee1")
    capsys.readouterr()
    rows = run("--precisions", "fp32,tf32", "--resume", str(tmp_path / "earlier.json"))
    kept, new = rows[: len(first)], rows[len(first) :]
    assert kept == [{"of_commit": "c0ffee0"} | row for row in first]
    assert {row["precision"] for row in new} == {"tf32"} and len(new) == len(first) and "of_commit" not in new[0]
    assert "lenet5 fp32" not in capsys.readouterr().out
    run("--resume", str(tmp_path / "earlier.json"))
    assert capsys.readouterr().out == "no cell was measured: nothing is written\n"


def row(impl: str, phase: str, speedup: float, executed: str) -> dict[str, Any]:
    return {"impl": impl, "mode": "graph", "phase": phase, "speedup": speedup, "executed_impl": executed,
            "workload": "net", "precision": "bf16"}  # fmt: skip


def test_the_summary_counts_what_is_slower() -> None:
    rows = [row("circulant", "step", speed, "circulant[impl=kernel]") for speed in (0.9, 2.0)]
    rows += [row("circulant", "step", 1.0, DENSE), row("circulant", "end_to_end", 1.5, "2 layers replaced")]
    found = never_slower.summary(rows)["circulant, graph"]
    assert found["distinct layers"] == 3 and found["replaced"] == 2
    assert found["lowest speedup of a replaced layer"] == 0.9 and found["layers below 0.98"] == 1
    assert found["whole steps"] == {"net bf16": 1.5}


def test_every_method_of_the_registry_is_measured() -> None:
    assert {*never_slower.METHODS} == {name for name, info in CELLS.items() if not info.published}
