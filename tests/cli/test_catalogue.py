"""Commands about what lamina ships, and about the trace database."""

import csv
import io
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

QUICK = ("bench", "primitives/linear", "--repeat", "2", "--device", "cpu", "--batch-size", "2")


def test_recipes_are_listed_shown_and_copied(lamina: Lamina, tmp_path: Path) -> None:
    assert "models/lenet5" in lamina("recipes", "ls").stdout
    text = lamina("recipes", "show", "lenet5.toml").stdout
    assert "[[layer]]" in text
    result = lamina("recipes", "cp", "models/lenet5", str(tmp_path))
    assert (tmp_path / "lenet5.toml").read_text() == text and result.exit_code == 0
    assert lamina("recipes", "cp", "models/lenet5", str(tmp_path)).exit_code == 2


def test_the_zoo_is_listed(lamina: Lamina) -> None:
    listed = lamina("models").stdout
    assert "resnet152" in listed and "Krizhevsky" in listed


@pytest.mark.parametrize(
    ("words", "field", "known"),
    [
        (("models",), "network", "resnet152"),
        (("methods",), "implementation", "circulant"),
        (("recipes", "ls"), "recipe", "models/lenet5"),
        (("counters", "stalls"), "metric", "gpu__time_duration.sum"),
        (("reproduce", "ls"), "name", "dnnmark-table-5.1"),
    ],
)
def test_what_is_listed_is_json_and_csv_too(words: tuple[str, ...], field: str, known: str, lamina: Lamina) -> None:
    rows = json.loads(lamina(*words, "--format", "json").stdout)
    lines = list(csv.DictReader(io.StringIO(lamina(*words, "--format", "csv").stdout)))
    assert [row[field] for row in rows] == [line[field] for line in lines]
    assert known in [row[field] for row in rows] and list(lines[0]) == list(rows[0])
    refused = lamina(*words, "--format", "html")
    assert refused.exit_code == 2 and "csv, json, table" in refused.output


def test_a_dnnmark_file_converts_to_toml_that_resolves_alike(lamina: Lamina, tmp_path: Path) -> None:
    lamina("recipes", "cp", "dnnmark-alexnet", str(tmp_path))
    source, converted = tmp_path / "dnnmark-alexnet.dnnmark", tmp_path / "alexnet.toml"
    result = lamina("convert-config", str(source), "--output", str(converted))
    assert result.exit_code == 0 and "note:" in result.stderr
    layers = [
        [{key: value for key, value in layer.items() if key != "network"} for layer in json.loads(dry.stdout)]
        for dry in (lamina("bench", str(path), "--dry-run", "--format", "json") for path in (source, converted))
    ]
    assert layers[0] == layers[1] and len(layers[0]) == 21


def test_the_machine_is_described(lamina: Lamina) -> None:
    facts = json.loads(lamina("env", "--device", "cpu", "--json").stdout)
    assert facts["device_kind"] == "cpu" and facts["torch"] and facts["python"].startswith("3.")


def test_runs_are_listed_compared_exported_imported_queried_and_removed(lamina: Lamina, tmp_path: Path) -> None:
    assert lamina(*QUICK).exit_code == 0 and lamina(*QUICK).exit_code == 0
    listed = json.loads(lamina("runs", "show", "latest", "--format", "json").stdout)
    ids = [line.split(",")[0] for line in lamina("runs", "sql", "select id from run").stdout.split()[1:]]
    assert len(ids) == 2 and len(listed) >= 2
    compared = lamina("runs", "diff", ids[0], ids[1])
    assert compared.exit_code == 0 and "linear" in compared.stdout

    trace = tmp_path / "trace.json"
    assert lamina("runs", "export", ids[0], "--format", "trace", "-o", str(trace)).exit_code == 0
    elsewhere = str(tmp_path / "elsewhere.db")
    assert lamina("runs", "import", str(trace), "--store", elsewhere).exit_code == 0
    assert ids[0] in lamina("runs", "ls", "--store", elsewhere).stdout
    (found,) = json.loads(lamina("runs", "ls", "--store", elsewhere, "--format", "json").stdout)
    assert (found["run"], found["verb"], found["status"]) == (ids[0], "bench", "done")
    assert lamina("runs", "import", str(trace), "--store", elsewhere).exit_code == 2

    assert lamina("runs", "export", ids[0], "--format", "parquet", "-o", str(tmp_path / "a.parquet")).exit_code == 0
    assert lamina("runs", "rm", ids[0]).exit_code == 0
    assert ids[0] not in lamina("runs", "ls").stdout


def test_the_papers_tables_are_listed_and_counted(lamina: Lamina) -> None:
    assert "Table 5.1" in lamina("reproduce", "ls").stdout
    counted = lamina("reproduce", "run", "dnnmark-table-5.1")
    assert counted.exit_code == 0 and "disputed" in counted.stdout and "896 M" in counted.stdout


def test_training_is_recorded(lamina: Lamina, tmp_path: Path) -> None:
    import numpy as np

    data = tmp_path / "noise.npz"
    generator = np.random.default_rng(0)
    arrays = {f"x_{split}": generator.integers(0, 255, (40, 28, 28)).astype(np.uint8) for split in ("train", "test")}
    np.savez(data, **arrays, **{f"y_{split}": np.arange(40, dtype=np.uint8) % 3 for split in ("train", "test")})
    checkpoint = tmp_path / "state.safetensors"
    words = ("train", "lenet5", "--data", str(data), "--epochs", "2", "-b", "8", "--device", "cpu")
    result = lamina(*words, "--checkpoint", str(checkpoint))
    assert result.exit_code == 0, result.output
    assert checkpoint.exists() and "epoch 2" in result.stderr
    assert "lenet5: training" in lamina("runs", "show", "latest").stdout


def test_version(lamina: Lamina) -> None:
    from lamina import __version__

    assert lamina("--version").stdout.strip() == f"lamina {__version__}"


def test_counters_of_a_set_are_listed_with_nvprofs_names(lamina: Lamina) -> None:
    result = lamina("counters", "core")
    assert result.exit_code == 0, result.output
    assert "sm__inst_executed.avg.per_cycle_active" in result.stdout
    assert "executed_ipc" in result.stdout and "dram__sectors_read" not in result.stdout


def test_an_unknown_metric_is_answered_with_the_nearest(lamina: Lamina) -> None:
    result = lamina("counters", "stals")
    assert result.exit_code == 2 and "stalls" in result.stderr
