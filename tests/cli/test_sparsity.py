"""lamina sparsity, as a person types it."""

import csv
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from lamina.cli.sparsity import sparsity
from lamina.simulate.workloads import read_masks
from lamina.store import open_store

QUICK = ("lenet5", "--data", "synthetic", "-n", "3", "-b", "4", "--device", "cpu")


@pytest.fixture
def store_url(store_path: Path) -> str:
    return str(store_path)


def lamina_sparsity(*words: str) -> Result:
    app = typer.Typer()
    app.command()(sparsity)
    return CliRunner().invoke(app, list(words))


def test_a_table_summarizes_maps_and_the_store_has_them_all(store_url: str) -> None:
    result = lamina_sparsity(*QUICK, "--store", store_url)
    assert result.exit_code == 0, result.output
    with open_store(Path(store_url)) as store:
        (this,) = store.runs()
        rows = store.sparsities(this.id)
    assert this.id in result.stdout and "state at the end: active" in result.stdout
    for name in {row.layer for row in rows}:
        last = [row.density for row in rows if row.layer == name][-1]
        assert any(name in line and f"{last:.3f}" in line for line in result.stdout.splitlines())


def test_observations_as_csv_and_json(store_url: str) -> None:
    result = lamina_sparsity(*QUICK, "--store", store_url, "--exhaustive", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["iteration"] for row in rows} == {"0", "1", "2"}
    again = json.loads(lamina_sparsity(*QUICK, "--store", store_url, "--exhaustive", "--format", "json").stdout)
    assert [float(row["density"]) for row in rows] == [row["density"] for row in again]


def test_each_map_follows_its_schedule(store_url: str) -> None:
    words = ("--store", store_url, "--schedule", "classifier.*=every:2", "--schedule", "features.1=every:1")
    result = lamina_sparsity(*QUICK, *words, "--duration", "1", "--format", "csv")
    assert result.exit_code == 0, result.output
    seen: dict[str, list[str]] = {}
    for row in csv.DictReader(io.StringIO(result.stdout)):
        seen.setdefault(row["map"], []).append(row["iteration"])
    assert seen.pop("features.1") == ["0", "1", "2"]
    assert {name: at for name, at in seen.items() if at == ["0", "2"]}.keys() == {n for n in seen if "classifier" in n}
    with open_store(Path(store_url)) as store:
        (this,) = store.runs()
    assert this.config["schedules"] == {"classifier.*": "every:2:1", "features.1": "every:1:1"}


LAYER = ("--mask-layer", "features.3")


def test_masks_of_the_last_iteration(store_url: str, tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    result = lamina_sparsity(*QUICK, "--store", store_url, "--masks", str(path), "--mask-images", "2", *LAYER)
    assert result.exit_code == 0, result.output
    assert {(each.name, each.iteration, len(each.mask)) for each in read_masks(path)} == {("features.3", 2, 2)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "xml"), "expected one of: csv, json, table"),
        (("--duration", "600"), "duration <= period"),
        (("--period", "20000"), "hibernation period"),
        (("--module", "nothing"), "no module of the model"),
        (("--precision", "fp12"), "--precision"),
        (("--masks", "m.npz", "--mask-every", "9"), "at least every 3 iterations"),
        (("--schedule", "every:10"), "expected PATTERN=SCHEDULE"),
        (("--schedule", "*=often"), "--schedule *: expected every:PERIOD"),
        (("--schedule", "*=spartan:20000"), "hibernation period"),
        (("--schedule", "nothing.*=every:10"), "fits no monitored module"),
        (("--schedule", "*=every:10", "--exhaustive"), "leave one of them out"),
    ],
)
def test_wrong_options_exit_two(store_url: str, words: tuple[str, ...], message: str) -> None:
    result = lamina_sparsity(*QUICK, "--store", store_url, *words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr.replace("\n", " ")
