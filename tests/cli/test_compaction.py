"""lamina simulate compaction-engine, as a user types it."""

import csv
import json
from pathlib import Path

import numpy as np
from tests.cli.conftest import Lamina

from lamina.simulate.workloads import RecordedMask, write_masks
from lamina.spec.plan import Plan, PlannedLayer
from lamina.spec.plan_file import write_plan

RUN = ("simulate", "compaction-engine", "lenet5", "--batch", "1", "--set", "device.cu.count=2")


def test_layers_stand_beside_dense_and_their_bounds(lamina: Lamina) -> None:
    result = lamina(*RUN, "--density", "0.4", "--attribute")
    assert result.exit_code == 0, result.output
    for heading in ("speedup", "prefetch", "fewer lines", "bound", "all layers"):
        assert heading in result.stdout
    again = lamina(*RUN, "--density", "0.4", "--format", "json")
    rows = json.loads(again.stdout)
    assert [row["layer"] for row in rows] == ["features.0", "features.3"]
    assert "4 of 4 results were stored before" in again.stderr
    assert all(row["speedup"] == row["dense_cycles"] / row["engine_cycles"] < row["speedup_bound"] for row in rows)


def test_one_control_has_a_column_of_its_own(lamina: Lamina) -> None:
    result = lamina(*RUN, "--layer", "features.0", "--control", "dense-prefetch-fp16", "--format", "csv")
    assert result.exit_code == 0, result.output
    (row,) = csv.DictReader(result.stdout.splitlines())
    assert int(row["dense_prefetch_fp16_cycles"]) > 0 and row["groups"] == "1"


def test_recorded_zeros_are_taken(lamina: Lamina, tmp_path: Path) -> None:
    path = tmp_path / "masks.npz"
    write_masks(path, [RecordedMask("features.3", 10, np.random.default_rng(0).random((2, 6, 14, 14)) < 0.3)])
    result = lamina(*RUN, "--layer", "features.3", "--masks", str(path), "--format", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert 0.2 < row["density"] < 0.4


def test_wrong_settings_are_refused(lamina: Lamina) -> None:
    for wrong, message in (
        (("--control", "densee"), "'densee' is unknown: did you mean 'dense"),
        (("--set", "sib_kbs=1"), "did you mean 'sib_kb'"),
        (("--set", "search=blind"), "search = 'blind'"),
        (("--masks", "none.npz"), "none.npz"),
        (("--density", "nan"), "density"),
        (("--layer", "features.1"), "--layer: 'features.1' is none of the convolutions"),
    ):
        result = lamina(*RUN, *wrong)
        assert result.exit_code == 2 and message in result.stderr, (wrong, result.output)


def test_densities_are_those_of_a_plan(lamina: Lamina, tmp_path: Path) -> None:
    layer = PlannedLayer(name="features.3", type="Conv2d", method="dense", density=0.2)
    write_plan(Plan(network="lenet5", goal="infer", batch=1, layers=(layer,)), tmp_path / "plan.toml")
    words = ("--layer", "features.3", "--plan", str(tmp_path), "--format", "json")
    (row,) = json.loads(lamina(*RUN, *words).stdout)
    assert 0.1 < row["density"] < 0.3
    both = lamina(*RUN, "--density", "0.4", *words)
    assert both.exit_code == 2 and "omit one" in both.stderr


def test_a_layer_without_result_exits_one(lamina: Lamina) -> None:
    result = lamina(*RUN, "--set", "device.dram.bytes=300000")
    assert result.exit_code == 1 and "raise dram.bytes" in result.stderr
