"""lamina deft, as a person types it."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.conftest import Lamina

import lamina as package
from lamina import measure
from lamina.accelerate.methods.elimination.pareto import Point
from lamina.cli.deft import layer_table, network_table
from lamina.errors import LaminaError
from lamina.pipeline.deft import deployed, onnx_file, pruning
from lamina.pipeline.deft.records import LayerResult, Measured, Outcome
from lamina.record import Timing

QUICK = ("deft", "lenet5", "--data", "fashion-mnist", "--train-epochs", "1", "--train-batch", "500", "--device", "cpu",
         "--keep-ratios", "0.5", "--calibration", "50")  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    once = measure.Repeat(min_samples=1, max_samples=1, min_time_s=0, max_time_s=0.01, warmup=1)
    monkeypatch.setattr(deployed, "REPEAT", once)
    monkeypatch.setattr(deployed, "ROUNDS", 1)


def test_json_and_a_folder_that_loads(lamina: Lamina, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = lamina(*QUICK, "-o", str(folder), "--format", "json", "--max-accuracy-drop", "100")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["layers"][0]["layer"] == "features.0" and len(found["layers"]) == 5
    assert found["run_id"] in result.stderr and "features.3 0.5" in result.stderr
    model = package.load(folder)
    assert sum(int(p.count_nonzero()) for p in model.parameters()) == found["result"]["parameters"]
    again = lamina(*QUICK, "-o", str(folder), "--max-accuracy-drop", "100", "--resume")
    assert again.exit_code == 0 and "epoch 1" not in again.stderr
    assert f"Deft: {found['network']}" in again.stdout and "classifier.2" in again.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--format", "xml"), 2, "'xml' is unknown"),
        (("--keep-ratios", "half"), 2, "--keep-ratios: expected numbers"),
        (("--keep-ratios", "1.5"), 2, "--keep-ratios: expected numbers above 0 and below 1"),
        (("--shares", "1.5"), 2, "--keep-ratios: expected numbers above 0 and below 1"),
        (("--alpha", "1.5"), 2, "--alpha: expected numbers above 0 and up to 1"),
        (("--alpha", "much"), 2, "--alpha: expected numbers"),
        (("--layer", "clasifier.*"), 2, "'clasifier.*' matches no layer"),
        (("--precision", "fp12"), 2, "--precision"),
        (("--recovery", "prayer"), 2, "'prayer' is unknown"),
        (("--weight-format", "e9m9"), 2, "format 'e9m9' is unknown"),
        (("--compare", "magic"), 2, "compare 'magic' is unknown"),
        (("--target-speedup", "0.1"), 2, "target speedup"),
        (("--lr", "0"), 2, "--learning-rate"),
        (("--weights", "nowhere.safetensors"), 2, "nowhere.safetensors: expected a safetensors file"),
    ],
)
def test_what_makes_no_sense_exits_two(
    lamina: Lamina, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    result = lamina(*QUICK, "-o", str(tmp_path / "out"), *words)
    assert result.exit_code == code, result.output
    assert said in result.stderr.replace("\n", " ")


def test_a_missing_package_exits_three(lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "find_spec", lambda name: None)
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    for words, package_name in ((("--compare", "channels"), "torch-pruning"), (("--onnx", "x.onnx"), "onnx extra")):
        result = lamina(*QUICK, "-o", str(tmp_path / "out"), *words)
        assert result.exit_code == 3 and package_name in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_made_fails_after_all_else(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise LaminaError("x.onnx: torch cannot export this network")

    monkeypatch.setattr(onnx_file, "require", lambda: None)
    monkeypatch.setattr(onnx_file, "export", refuse)
    result = lamina(*QUICK, "-o", str(tmp_path / "out"), "--onnx", "x.onnx")
    assert result.exit_code == 1 and "torch cannot export" in result.stderr
    assert "Deft: lenet5" in result.stdout and (tmp_path / "out" / "recipe.json").exists()


def lines(*tables: object) -> str:
    console = Console(width=200, record=True, file=sys.stderr)
    for table in tables:
        console.print(table)
    return console.export_text()


def test_tables_say_what_was_found() -> None:
    def measured(name: str, accuracy: float, us: float) -> Measured:
        return Measured(name, accuracy, accuracy, Timing("cpu", "-", us, us - 1, us + 1, 7), 1000, 2000, 4096)

    layers = (
        LayerResult("conv", "Conv2d", 64, 32, 128, 96, 0.25, 0.125, "e3m4", 0.02, "alone at 0.5", "e3m4 was requested"),
        LayerResult("fc", "Linear", 128, 128, 10, 10, None, None, None, None, "kept dense", "no kernel"),
    )
    point = Point({"conv": 0.5, "fc": 1.0}, 98.5, 0.5)
    outcome = Outcome(
        "r1", "net", layers, measured("dense", 99.0, 200.0), measured("deft", 98.25, 100.0), (point,), point,
        (measured("magnitude", 97.0, 210.0),),
    )  # fmt: skip
    text = lines(layer_table(outcome), network_table(outcome))
    rows = {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}
    for said in ("32 of 64", "96 of 128", ">= 0.250", "12.5%", "e3m4", "2.0%", "alone at 0.5"):
        assert said in rows["conv"]
    assert "128 of 128" in rows["fc"] and "dense" in rows["fc"] and "%" not in rows["fc"]
    assert "98.25 %" in rows["deft"] and "-0.75" in rows["deft"] and "2.00x" in rows["deft"]
    assert "-2.00" in rows["magnitude"] and "0.95x" in rows["magnitude"]
    assert "98.50 % at 2.00x" in text and "was requested" in text and "no kernel" in text
    assert outcome.speedup == 2 and outcome.drop == 0.75
    text = lines(network_table(replace(outcome, objective="output error")))
    assert "1.75 %" in text and "front of output error, on calibration data: 1.50 % at 2.00x" in text
    assert "accuracy" not in text and "points" not in text
