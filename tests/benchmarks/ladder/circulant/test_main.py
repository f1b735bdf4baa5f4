"""The benchmark from its command line to its file, on the tiny layer that the CPU runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.ladder.circulant import __main__ as ladder
from benchmarks.ladder.circulant.layers import Contender
from lamina import measure
from lamina.accelerate.papers.circulant_ladder import rungs
from lamina.errors import LaminaError, MissingError
from lamina.pipeline.reproduce.live import ladder as layers
from lamina.pipeline.reproduce.live import ladder_counters as counts
from lamina.spec.published import entry

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("results")
    ladder.main(["--device", "cpu", "--output", str(folder)])
    (path,) = folder.iterdir()
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_every_rung_has_a_row_for_each_phase_and_the_step(document: dict[str, Any]) -> None:
    rows = {(row["impl"], row["phase"]) for row in document["rows"]}
    names = [f"ladder[rung={rung.name},block_size=8]" for rung in rungs.RUNGS]
    assert rows == {
        *((name, phase) for name in ("dense", *names) for phase in layers.STEPS),
        ("circulant[block_size=8]", "forward"),
        ("circulant[block_size=8]", "step"),
    }
    assert document["summary"]["failed"] == []
    assert document["provenance"]["commit"] == "0123abc"
    assert document["provenance"]["command"] == "python -m benchmarks.ladder.circulant"


def test_every_row_was_checked(document: dict[str, Any]) -> None:
    eps = torch.finfo(torch.float32).eps
    for row in document["rows"]:
        assert 0 < row["rel_error"] <= 2 * row["plain_torch_error"] + eps
        assert row["q1_us"] <= row["median_us"] <= row["q3_us"]


def test_the_summary_has_speed_ups_and_metrics_of_every_plan(document: dict[str, Any]) -> None:
    over = document["summary"]["speedup over the algorithm as written"]
    assert set(over) == {f"tiny k=8 {phase} cpu" for phase in layers.STEPS}
    assert "ladder[rung=fusion,block_size=8]" in over["tiny k=8 step cpu"]
    reuse = document["summary"]["data reuse and memory distance"]
    assert len(reuse) == 3 * 5
    assert reuse["tiny k=8 backward_data o2"]["MD read"] == pytest.approx(15 / 640, abs=1e-3)


def test_speed_ups_are_ratios_of_the_same_layer_phase_and_clock() -> None:
    def row(impl: str, us: float, **other: Any) -> dict[str, Any]:
        common = {"layer": "A", "block_size": 16, "phase": "forward", "timing": "graph", "precision": "fp32"}
        return common | {"impl": impl, "median_us": us} | other

    rows = [
        row("dense", 10.0), row("x", 4.0), row("dense", 20.0, phase="step"), row("x", 5.0, phase="step"),
        row("dense", 1.0, precision="tf32"), row("x", 1.0, layer="B"),
    ]  # fmt: skip
    assert ladder.speedups(rows, "dense") == {
        "A k=16 forward graph": {"x": 2.5},
        "A k=16 step graph": {"x": 4.0},
    }


def test_our_whole_steps_stand_beside_what_is_printed() -> None:
    common = {"layer": "A", "block_size": 32, "phase": "step", "timing": "graph", "precision": "fp32"}
    times = {"dense": 6.0, ladder.AS_WRITTEN.format(k=32): 60.0, "ladder[rung=fusion,block_size=32]": 3.0}
    found = ladder.beside([common | {"impl": impl, "median_us": us} for impl, us in times.items()])
    ours = {(one["entry"], one["layer"]): (one["printed"], one["ours"]) for one in found}
    assert ours.pop(("circulant-table-7.4", "A k=32")) == (22.4, 20.0)
    assert ours.pop(("circulant-figure-7.5", "A k=32")) == (2.1, 2.0)
    assert {ratio for _, ratio in ours.values()} == {None}


@pytest.mark.parametrize(("layer", "mean"), [("A", 25.7), ("B", 14.2), ("C", 7.5)])
def test_what_is_printed_of_each_layer_has_the_mean_that_the_text_tells(layer: str, mean: float) -> None:
    values = [value.value for value in entry("circulant-table-7.4").values if value.layer.startswith(layer)]
    assert len(values) == len(layers.BLOCK_SIZES)
    assert sum(float(value) for value in values) / 3 == pytest.approx(mean, abs=0.05)


def test_a_phase_that_cannot_run_is_left_out_with_the_reason() -> None:
    def refuse() -> layers.Tensors:
        raise LaminaError("out of threads")

    one = torch.ones(2)
    contender = Contender(
        "x", "fp32", {"forward": lambda: (one,), "step": refuse}, {"forward": (one.double(),), "step": ()}
    )
    failed: list[str] = []
    assert ladder.checked(contender, "A k=16 x", failed) == {"forward": 0.0}
    assert failed == ["A k=16 x step: out of threads"]


def test_counters_that_nobody_may_read_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> list[dict[str, Any]]:
        raise MissingError("no permission")

    def half(layer: str, k: int, static: object) -> list[dict[str, Any]]:
        if k == 32:
            raise LaminaError("took too long")
        return [{"layer": layer, "block_size": k}]

    monkeypatch.setattr(counts, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(measure, "resolve", torch.device)
    monkeypatch.setattr(ladder, "compiled", lambda source, architecture: b"")
    monkeypatch.setattr(counts, "static_instructions", lambda binary: {"fused": 1})
    failed: list[str] = []
    monkeypatch.setattr(counts, "counted", nothing)
    assert ladder.counters(["A", "B"], failed) == {"rows": [], "static_instructions": {"fused": 1}}
    assert failed == ["counters: no permission"]
    monkeypatch.setattr(counts, "counted", half)
    assert [(row["layer"], row["block_size"]) for row in ladder.counters(["A"], failed)["rows"]] == [
        ("A", 16),
        ("A", 64),
    ]
    assert failed[1:] == ["A k=32 counters: took too long"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="found none"):
        ladder.main(["--output", str(tmp_path)])
