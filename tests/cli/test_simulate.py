"""lamina simulate: devices, and the comparison with measured runs."""

import json
from pathlib import Path

from tests.cli.conftest import Lamina

from lamina.simulate.hierarchy import gemm, preset, simulate

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
    assert "all held" in lamina("simulate", "validate", str(measured(tmp_path))).stdout


def test_a_broken_identity_is_named_and_exits_one(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("simulate", "validate", str(measured(tmp_path, inst=4527)))
    assert result.exit_code == 1 and "instructions 4526 for 4527" in result.stdout


def test_a_malformed_file_names_its_lines(lamina: Lamina, tmp_path: Path) -> None:
    result = lamina("simulate", "validate", str(measured(tmp_path, M=-1, kt_us="soon")))
    assert result.exit_code == 2 and "line 2" in result.stderr and "kt_us" in result.stderr
    assert lamina("simulate", "validate", str(tmp_path / "none.csv")).exit_code == 2


def test_devices_are_listed_and_shown(lamina: Lamina) -> None:
    assert "mi6" in lamina("simulate", "devices").stdout.split()
    assert "clock_ghz = 1.0" in lamina("simulate", "devices", "mi6").stdout
    assert lamina("simulate", "devices", "mi7").exit_code == 2
