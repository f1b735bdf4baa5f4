"""lamina simulate: devices, networks layer by layer, and the comparison with measured runs."""

import csv
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Lamina

from lamina.simulate.hierarchy import gemm, preset, presets, simulate
from lamina.simulate.hierarchy.config import read_device
from lamina.spec.plan import Plan, PlannedLayer
from lamina.spec.plan_file import write_plan

HEADER = (
    "tag,cus,l2_kb,dram,K,M,N,kt_us,inst,L1V.read-hit,L1V.read-miss,L1V.read-mshr-hit,"
    "L1V.write-hit,L1V.write-miss,L1V.write-mshr-hit,L2.read-miss,L2TLB.miss"
)


def measured(tmp_path: Path, **changes: object) -> Path:
    """A file of one run, made by the simulator itself and then changed."""
    run = simulate(gemm(32, 32, 128, "shipped"), preset("mi6"))
    columns = dict.fromkeys(HEADER.split(","), 0) | {
        "tag": "own", "cus": 36, "l2_kb": 2048, "dram": "ideal100", "K": 128, "M": 32, "N": 32,
        "kt_us": run.microseconds, "inst": 4526, "L1V.read-miss": 513, "L1V.write-miss": 64,
        "L2.read-miss": 544, "L2TLB.miss": 12,
    } | changes  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER}\n{','.join(map(str, columns.values()))}\n")
    return path


def test_a_file_of_runs_is_compared_row_by_row(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("simulate", "validate", str(measured(tmp_path)), "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (row,) = document["rows"]
    assert abs(row["error"]) < 0.2 and all(one["held"] for one in row["identities"])
    assert document["mean_error"] == document["worst_error"] == abs(row["error"])
    shipped = lamina("simulate", "validate")
    assert shipped.exit_code == 0 and "9 hold-outs: mean 2.3%" in shipped.stdout
    assert "all held" in lamina("simulate", "validate", str(measured(tmp_path))).stdout


def test_a_broken_identity_is_named_and_exits_one(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("simulate", "validate", str(measured(tmp_path, inst=4527)))
    assert result.exit_code == 1 and "instructions 4526 for 4527" in result.stdout


def test_a_malformed_file_names_its_lines(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("simulate", "validate", str(measured(tmp_path, M=-1, kt_us="soon")))
    assert result.exit_code == 2 and "line 2" in result.stderr and "kt_us" in result.stderr
    assert lamina("simulate", "validate", str(tmp_path / "none.csv")).exit_code == 2


def test_only_networks_of_packages_have_an_input_size(lamina: Lamina) -> None:
    for command in (["run"], ["compaction-engine"], ["training", "--bench", "a", "--sparsity", "b"]):
        result = lamina("simulate", *command, "lenet5", "--input-size", "1x32x32")
        assert result.exit_code == 2 and "are for networks of packages" in result.stderr


def test_devices_are_listed_and_shown(lamina: Lamina) -> None:
    assert "mi6" in lamina("simulate", "devices").stdout.split()
    assert "clock_ghz = 1.0" in lamina("simulate", "devices", "mi6").stdout
    assert lamina("simulate", "devices", "mi7").exit_code == 2


@pytest.mark.parametrize("name", presets())
def test_the_settings_of_a_device_are_a_file_of_it(lamina: Lamina, tmp_path: Path, name: str) -> None:
    (tmp_path / "own.toml").write_text(lamina("simulate", "devices", name).stdout)
    assert read_device(tmp_path / "own.toml") == preset(name)


RUN = ("simulate", "run", "lenet5", "--batch", "1", "--set", "device.cu.count=2")


def test_a_network_is_simulated_layer_by_layer_and_once(lamina: Lamina) -> None:
    first = lamina(*RUN, "--format", "json")
    assert first.exit_code == 0, first.output
    rows = json.loads(first.stdout)
    assert [(row["layer"], row["m"], row["n"], row["k"]) for row in rows] == [
        ("features.0", 6, 784, 25),
        ("features.3", 16, 100, 150),
    ]
    assert "0 of 2 results were stored before" in first.stderr
    second = lamina(*RUN, "--format", "csv")
    assert "2 of 2 results were stored before" in second.stderr
    assert [row["cycles"] for row in csv.DictReader(second.stdout.splitlines())] == [str(row["cycles"]) for row in rows]
    table = lamina(*RUN, "--layer", "*.3")
    assert "features.3" in table.stdout and "features.0" not in table.stdout and " note " not in table.stdout
    assert "0 of 2 results were stored before" in lamina(*RUN, "--fresh").stderr


def test_a_plan_gives_shapes_and_the_batch_size(lamina: Lamina, tmp_path: Path) -> None:
    layers = (
        PlannedLayer(name="features.0", type="Conv2d", method="circulant[block_size=4]"),
        PlannedLayer(name="features.3", type="Conv2d", method="eliminated[keep=0.5]"),
    )
    write_plan(Plan(network="lenet5", goal="infer", batch=1, layers=layers), tmp_path / "plan.toml")
    done = lamina("simulate", "run", "lenet5", "--plan", str(tmp_path), "--format", "json")
    assert done.exit_code == 0, done.output
    assert [(row["batch"], row["k"]) for row in json.loads(done.stdout)] == [(1, 25), (1, 75)]
    assert "features.0: circulant[block_size=4] is simulated as dense" in done.stderr
    missing = lamina("simulate", "run", "lenet5", "--plan", str(tmp_path / "none.toml"))
    assert missing.exit_code == 2 and "none.toml" in missing.stderr


def test_settings_change_the_device_and_the_kernel(lamina: Lamina) -> None:
    def cycles(*words: str) -> int:
        result = lamina(*RUN, "--layer", "features.3", "--format", "json", *words)
        assert result.exit_code == 0, result.output
        return int(json.loads(result.stdout)[0]["cycles"])

    assert cycles("--set", "device.dram.latency=400") > cycles()
    assert cycles("--set", "device.dram.mode=banked", "--device", "mi6-silicon") != cycles()
    assert cycles("--set", "kernel=shipped") > 0


def test_a_layer_without_a_result_exits_one_with_its_reason(lamina: Lamina) -> None:
    result = lamina(*RUN, "--set", "device.dram.bytes=200000")
    assert result.exit_code == 1
    assert "features.3" in result.stdout and "dram.bytes" in result.stdout and "no result" in result.stderr


def test_wrong_words_exit_two(lamina: Lamina) -> None:
    for words, message in (
        (("--layer", "features.9"), "--layer: 'features.9' is none of the convolutions"),
        (("--set", "layer=features.9"), "--set: layer = 'features.9' is none of the convolutions"),
        (("--set", "device.l2.bytes=3"), "device: l2.bytes = 3"),
        (("--set", "kernal=shipped"), "did you mean 'kernel'"),
        (("--set", "kernel"), "expected KEY=VALUE"),
        (("--device", "mi7"), "device 'mi7' is unknown"),
        (("--format", "xml"), "--format: 'xml' is unknown"),
    ):
        result = lamina(*RUN, *words)
        assert result.exit_code == 2 and message in result.stderr, result.output
