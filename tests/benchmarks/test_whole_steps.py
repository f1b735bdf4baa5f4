"""The benchmark of whole steps: its rows, its summary of rows that are known, its processes and its time limit."""

import json
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

import lamina
from benchmarks import whole_steps
from benchmarks.ahead import compile_conversion
from benchmarks.results import Row
from benchmarks.whole_networks import ALL, SMOKE, dense_networks
from benchmarks.whole_summary import summary
from lamina.spec.plan import MODES

CPU = torch.device("cpu")
LENET, TDNN = SMOKE
CIRCULANT = whole_steps.LABELS["circulant"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_steps, "LIMIT_S", 0.0)
    monkeypatch.setattr(whole_steps, "SELECT_S", 0.0)
    monkeypatch.setattr(whole_steps, "WARM_UP", 1)


def checked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        Row.model_validate(row)
    return rows


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_fit_the_schema_and_say_what_ran(precision: str) -> None:
    dense, ours = checked(whole_steps.measured(LENET, precision, "eager", CPU))
    assert (dense["impl"], ours["impl"]) == ("dense", CIRCULANT)
    assert dense["speedup"] == 1.0 and dense["executed_impl"] == "dense"
    assert ours["executed_impl"] == f"{ours['replaced']} of {ours['replaceable']} layers replaced"
    assert ours["launch_overhead_us"] == dense["launch_overhead_us"] > 0
    assert ours["replaceable"] > 0 and ours["selection_reason"] and ours["mode"] == "eager"
    assert sum(ours["impls"].values()) == ours["replaced"]


@pytest.mark.parametrize("method", ["eliminated", "sparse", "weight-only", "fused"])
def test_other_methods_train_or_infer(method: str) -> None:
    dense, ours = checked(whole_steps.measured(LENET, "bf16", "eager", CPU, method))
    assert ours["impl"] == ours["method"] == dense["method"] == method
    assert ours["training"] is (method in ("eliminated", "sparse"))


def test_methods_are_combined_and_a_convolution_algorithm_has_rows_of_its_own() -> None:
    rows = checked(whole_steps.measured(LENET, "fp32", "eager", CPU, "circulant-space-to-depth"))
    assert [row["impl"] for row in rows] == ["dense", whole_steps.LABELS["circulant-space-to-depth"]]
    rows += checked(whole_steps.measured(LENET, "fp32", "eager", CPU, "space-to-depth"))
    assert {*summary(rows)["speedup, eager"]} == {f"lenet5 fp32 {one}" for one in whole_steps.STEPS if "depth" in one}
    whole_steps.prepare(LENET, "fp32", "circulant-space-to-depth", CPU)


def test_dense_is_the_fastest_layout_of_a_tdnn() -> None:
    rows = checked(whole_steps.measured(TDNN, "fp32", "eager", CPU))
    dense, ours, *others = rows
    assert [row["impl"] for row in others] == [one.impl for one in dense_networks(TDNN, "fp32", CPU, True)]
    assert dense["median_us"] == min(row["median_us"] for row in others)
    assert dense["executed_impl"] in {row["impl"] for row in others}
    assert ours["executed_impl"].partition(" in ")[2] in {row["impl"] for row in others}
    assert ours["speedup"] == dense["median_us"] / ours["median_us"]


def test_converted_networks_are_timed_beside_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = lamina.convert

    def all_layers(model: Any, config: Any, *, example: Any, **options: Any) -> Any:
        return convert(model, config, example=example)

    monkeypatch.setattr("lamina.convert", all_layers)
    dense, ours, *others = checked(whole_steps.measured(TDNN, "fp32", "eager", CPU))
    assert ours["executed_impl"].startswith("4 of 4 layers replaced in dense[")
    assert (ours["replaced"], ours["replaceable"], len(others)) == (4, 4, 3)
    assert ours["median_us"] not in {row["median_us"] for row in others}
    assert ours["speedup"] == dense["median_us"] / ours["median_us"]


def test_every_layout_of_a_tdnn_computes_the_same() -> None:
    first, *others = dense_networks(TDNN, "fp32", CPU, training=True)
    for one in others:
        assert len(list(one.model.parameters())) == len(list(first.model.parameters()))
        torch.testing.assert_close(one.model(one.x), first.model(first.x))
    last: Any = others[-1].model
    assert last.features[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("method", ["circulant", "fused"])
def test_kernels_are_compiled_for_a_network_that_stays(method: str) -> None:
    config, training = whole_steps.STEPS[method]
    (dense,) = dense_networks(LENET, "bf16", CPU, training)
    before = str(dense.model)
    compile_conversion(dense.model, dense.x, config, "bf16", training, cast=training, device=CPU)
    whole_steps.one_pass(dense, "bf16", training)
    assert str(dense.model) == before


def test_every_mode_has_its_place() -> None:
    assert sorted(whole_steps.QUICKEST) == sorted(MODES)


def row(mode: str, impl: str, median: float, speedup: float, method: str = "circulant") -> dict[str, Any]:
    return {"workload": "net", "precision": "bf16", "mode": mode, "impl": impl, "median_us": median,
            "speedup": speedup, "method": method, "launch_overhead_us": median / 4}  # fmt: skip


ROWS = [
    row("eager", "dense", 10.0, 1.0), row("eager", "dense[layers=Conv2d]", 10.0, 1.0),
    row("eager", "circulant", 8.0, 1.25), row("graph", "dense", 6.0, 1.0), row("graph", "circulant", 9.0, 0.667),
]  # fmt: skip


def test_the_summary_compares_modes_and_the_best_of_them() -> None:
    found = summary(ROWS)
    assert found["speedup, eager"] == {"net bf16": 1.25} and found["speedup, graph"] == {"net bf16": 0.667}
    assert found["speedup, best mode over best dense mode"] == {"net bf16": 0.75}
    assert found["launch overhead, us"] == {"net bf16": 2.12}
    assert found["fastest mode, dense"] == {"net bf16": "graph"}
    assert found["fastest mode, converted"] == {"net bf16": "eager"}
    assert found["rows below 0.98x"] == 1


def test_the_summary_names_methods_where_there_are_several() -> None:
    others = [row("eager", "dense", 4.0, 1.0, "fused"), row("eager", "fused", 2.0, 2.0, "fused")]
    found = summary([*ROWS, *others])
    assert found["speedup, eager"] == {"net bf16 circulant": 1.25, "net bf16 fused": 2.0}
    assert found["speedup, best mode over best dense mode"]["net bf16 fused"] == 2.0


def written(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> list[Path]:
    monkeypatch.setattr(sys, "argv", ["whole_steps", *words, "--output", str(folder)])
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    whole_steps.main()
    return sorted(folder.glob("*.json"))


def test_tasks_in_processes_leave_their_rows_beside_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.results.names_of", lambda *known: str)
    words = ("--networks", "lenet5,nothing", "--precisions", "fp32", "--modes", "eager", "--processes", "2")
    (path,) = written(monkeypatch, tmp_path, *words)
    assert path.name.startswith("whole_steps_lenet5_nothing_fp32_eager_")
    document = json.loads(path.read_text())
    assert [row["impl"] for row in document["rows"]] == ["dense", CIRCULANT]
    assert document["provenance"]["command"].endswith("--modes eager --processes 2")
    assert "nothing fp32 circulant eager FAILED: KeyError" in capfd.readouterr().out


def test_each_network_that_ends_leaves_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(network: str, *asked: Any, after: Any) -> list[dict[str, Any]]:
        assert [one["workload"] for rows in seen for one in rows[-1:]] == ran  # written before this one began
        ran.append(network)
        rows = [row("eager", "dense", 1.0, 1.0) | RAN | {"workload": network}]
        (asked[-1] / f"{len(ran)}_{network}.json").write_text(json.dumps(rows))
        return rows

    def write(claim: str, device: str, rows: list[dict[str, Any]], *more: object) -> Path:
        seen.append(rows)
        return tmp_path

    ran, seen = list[str](), list[list[dict[str, Any]]]()
    monkeypatch.setattr(whole_steps, "task", task)
    monkeypatch.setattr("benchmarks.results.write", write)
    written(monkeypatch, tmp_path, "--networks", "lenet5,mlp", "--precisions", "fp32")
    assert len(ran) == 2 and [one["workload"] for one in seen[-1]] == ran


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_cell_is_started_after_the_limit(processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(monkeypatch, tmp_path, "--networks", "lenet5", "--limit", "0", "--processes", processes) == []


def test_a_limit_within_a_task_leaves_its_first_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]

    def measured(*asked: Any) -> list[dict[str, Any]]:
        now[0] = 2.0
        return [row(asked[2], "dense", 1.0, 1.0) | RAN]

    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr(whole_steps, "measured", measured)
    rows = whole_steps.task("lenet5", "fp32", ("eager", "graph"), ("circulant",), "cpu", until=1.0, cells=tmp_path)
    assert [row["mode"] for row in rows] == ["eager"]
    assert whole_steps.finished(tmp_path) == rows


RAN = {"executed_impl": "dense"}


def test_each_cell_that_ends_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(whole_steps, "measured", lambda *asked: [row(asked[2], "dense", 1.0, 1.0) | RAN])
    monkeypatch.setattr(whole_steps, "prepare", lambda *_: None)
    told: list[int] = []

    def after() -> None:
        told.append(len(whole_steps.finished(tmp_path)))

    whole_steps.task("lenet5", "fp32", ("eager", "graph"), ("circulant",), "cpu", inf, tmp_path, after)
    assert told == [1, 2]


def test_a_mode_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measured(*asked: Any) -> list[dict[str, Any]]:
        if asked[2] == "compiled":
            raise RuntimeError("no compiler")
        return [row(asked[2], "dense", 1.0, 1.0) | RAN]

    monkeypatch.setattr(whole_steps, "measured", measured)
    modes = "eager", "compiled", "graph"
    rows = whole_steps.task("lenet5", "fp32", modes, ("circulant",), "cpu", until=inf, cells=tmp_path)
    assert [row["mode"] for row in rows] == ["eager", "graph"]
    assert "lenet5 fp32 circulant compiled FAILED: no compiler" in capsys.readouterr().out


def test_the_networks_take_their_examples() -> None:
    assert [(one.name, one.batch) for one in ALL] == [
        ("mlp", 2048), ("alexnet", 128), ("vgg16", 64), ("resnet50", 64), ("vit_base", 32), ("gpt2_block", 8),
        ("lstm", 64), ("resnet18", 64), ("tdnn", 128), ("vit_b_16", 32), ("gpt2", 4),
    ]  # fmt: skip
    assert ALL[0].build()(torch.randn(2, 1024)).shape == (2, 1024)
    lstm = next(one for one in ALL if one.name == "lstm").build().lstm
    assert (lstm.num_layers, lstm.hidden_size) == (2, 1024)
