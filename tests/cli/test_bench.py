"""lamina bench, as a person types it."""

import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Lamina

from lamina.cli import options
from lamina.measure.roofs import roofs
from lamina.spec.plan import Plan, PlannedLayer
from lamina.spec.plan_file import write_plan

QUICK = ("--repeat", "2", "--batch-size", "2", "--device", "cpu")


def test_a_dry_run_prints_json_and_nothing_else(lamina: Lamina) -> None:
    result = lamina("bench", "alexnet2012", "--batch-size", "4", "--dry-run", "--format", "json")
    assert result.exit_code == 0, result.output
    layers = json.loads(result.stdout)
    assert sum(layer["parameters"] for layer in layers) == 62_378_344
    first = layers[0]
    assert first["type"] == "convolution" and first["output"] == [4, 96, 55, 55]
    assert first["phases"]["forward"]["flops"] == 4 * 2 * 55 * 55 * 96 * 363
    assert set(first) == {"network", "name", "type", "inputs", "output", "parameters", "phases"}


def test_a_dry_run_prints_a_table(lamina: Lamina) -> None:
    result = lamina("bench", "vgg16", "--dry-run")
    assert result.exit_code == 0 and "138 M" in result.stdout and "3x224x224" in result.stdout


def test_selected_layers_alone_are_listed_and_timed(lamina: Lamina) -> None:
    chosen = ("--layer", "classifier.[02]", "--layer", "features.3")
    result = lamina("bench", "lenet5", *chosen, "--dry-run", "--format", "json")
    assert {layer["name"] for layer in json.loads(result.stdout)} == {"features.3", "classifier.0", "classifier.2"}
    result = lamina("bench", "lenet5", *QUICK, *chosen, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["layer"] for row in rows} == {"features.3", "classifier.0", "classifier.2"}
    assert {row["phase"] for row in rows} == {"forward", "backward_data", "backward_weight"}
    result = lamina("bench", "lenet5", "--layer", "features.9")
    assert result.exit_code == 2 and "'features.9' matches no layer: did you mean 'features." in result.stderr


def test_the_memory_plan_names_who_shares_a_chunk(lamina: Lamina) -> None:
    result = lamina("bench", "lenet5", "--memory", "--phase", "forward", "-b", "4")
    assert result.exit_code == 0, result.output
    # Forward only, a tensor dies when the next layer has read it, and its memory serves a later one.
    (line,) = [line for line in result.stdout.splitlines() if "features.0" in line]
    assert "features.3" in line and "features.1" not in line and "d(" not in result.stdout
    assert "d(features.3)" in lamina("bench", "lenet5", "--memory", "-b", "4").stdout


def test_a_dry_run_needs_no_store(lamina: Lamina, tmp_path: Path) -> None:
    lamina("bench", "lenet5", "--dry-run")
    assert not (tmp_path / "lamina.db").stat().st_size


def test_rows_as_json_csv_and_table(lamina: Lamina) -> None:
    result = lamina("bench", "lenet5", *QUICK, "--phase", "forward", "--format", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["layer"] for row in rows} >= {"features.0", "classifier.4", "lenet5"}
    assert all(row["median_us"] > 0 and row["clock"] == "cpu" for row in rows)
    result = lamina("runs", "show", "latest", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(result.stdout)))) == len(rows)
    result = lamina("runs", "show", "--format", "table")
    assert "features.0" in result.stdout and "convolution" in result.stdout


def test_a_file_s_own_workload_is_used_and_options_override_it(lamina: Lamina, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\n[input]\nshape = [3, 8, 8]\n[[layer]]\ntype = "convolution"\nout_channels = 4\nkernel = 3\n'
        '[workload]\nprecision = ["fp32", "bf16"]\nphases = ["forward"]\nbatch = [3]\nrepeat = 2\n'
    )
    rows = json.loads(lamina("bench", str(file), "--device", "cpu", "--format", "json").stdout)
    assert {(row["precision"], row["batch"]) for row in rows} == {("fp32", 3), ("bf16", 3)}
    rows = json.loads(
        lamina("bench", str(file), "--device", "cpu", "--format", "json", "--precision", "fp64", "-b", "1").stdout
    )
    assert {(row["precision"], row["batch"]) for row in rows} == {("fp64", 1)}


@pytest.mark.parametrize("option", [(), ("--input-size", "3x16x16")])
@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("whole.pt", "", "whole.pt is a file of weights or an exported program, not a network that lamina can take"),
        ("m.ONNX", ":Net", "give the function that builds it, as FILE.py:FUNCTION, which may load the weights itself"),
        ("nets.py", "", "nets.py:NAME; expected one of: Net, small"),
    ],
)
def test_files_that_are_no_networks_say_what_to_name(
    lamina: Lamina, tmp_path: Path, name: str, more: str, message: str, option: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text("class Net(Module): ...\ndef small(): return Net()\ndef main(): ...\n")
    done = lamina("bench", f"{tmp_path / name}{more}", "--dry-run", *option)
    assert done.exit_code == 2 and message in done.stderr


def test_a_file_s_own_implementations_can_be_selected(lamina: Lamina) -> None:
    assert lamina("bench", "primitives/circulant", "--select", "measure", "--dry-run").exit_code == 0


def test_keys_without_effect_are_named(lamina: Lamina, tmp_path: Path) -> None:
    file = tmp_path / "old.dnnmark"
    file.write_text(
        "[DNNMark]\nrun_mode=standalone\n[Convolution]\n  n=2\n  c=3\n  h=8\n  w=8\n  conv_fwd_pref=quick\n"
    )
    result = lamina("bench", str(file), "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"note: .*conv_fwd_pref.*ignored.*line 8", result.stdout)


def test_a_report_is_written_beside(lamina: Lamina, tmp_path: Path) -> None:
    page = tmp_path / "out" / "report.html"
    result = lamina("bench", "lenet5", *QUICK, "--phase", "forward", "--report", str(page))
    assert result.exit_code == 0, result.output
    assert "features.0" in page.read_text(encoding="utf-8")
    again = tmp_path / "again.html"
    assert lamina("report", "latest", "--output", str(again)).exit_code == 0 and again.stat().st_size > 10_000


def test_a_failed_layer_makes_the_exit_code_one(lamina: Lamina) -> None:
    result = lamina("bench", "primitives/lrn", *QUICK, "--precision", "bf16")
    assert result.exit_code == 1 and "BFloat16" in result.stderr


BAD = [
    (("bench",), 2, "expected a SPEC"),
    (("bench", "lenet"), 2, "did you mean 'lenet5'"),
    (("bench", "lenet5", "--precision", "fp31"), 2, "did you mean 'fp32'"),
    (("bench", "lenet5", "--select", "measured"), 2, "did you mean 'measure'"),
    (("bench", "lenet5", "--select", "measure"), 2, "--select needs --impl"),
    (("bench", "primitives/convolution-algorithms", "--select", "model"), 2, "--select needs --impl"),
    (("bench", "lenet5", "--impl", "fused", "--plan", "plan.toml"), 2, "--impl and --plan: expected one of them"),
    (("bench", "lenet5", "--impl", ""), 2, "expected one of: circulant, dense, "),
    (("bench", "lenet5", "--impl", ","), 2, "got ','"),
    (("bench", "lenet5", "--phase", "backwards"), 2, "did you mean 'backward_data'"),
    (("bench", "lenet5", "--layout", "chw"), 2, "did you mean 'nchw'"),
    (("bench", "lenet5", "--impl", "dnse"), 2, "did you mean 'dense'"),
    (("bench", "lenet5", "--impl", "dense:winogard"), 2, "did you mean 'winograd'"),
    (("bench", "lenet5", "--impl", "sparse[blocks=8]"), 2, "option 'blocks' is unknown"),
    (("bench", "lenet5", "--device", "quantum"), 2, "quantum"),
    (("bench", "lenet5", "--clock", "events", "--device", "cpu"), 2, "'events' clock does not"),
    (("bench", "lenet5", "--batch-size", "0"), 2, "positive whole numbers"),
    (("bench", "lenet5", "--batch-size", "many"), 2, "positive whole numbers"),
    (("bench", "lenet5", "--format", "xml"), 2, "--format"),
    (("bench", "lenet5", "--set", "N"), 2, "KEY=VALUE"),
    (("bench", "lenet5", "--data", "nowhere", "--device", "cpu"), 2, "nowhere"),
    (("bench", "no_such.package:thing"), 3, "no_such"),
    (("bench", "torch.nn:ReLU"), 2, "--input-size"),
    (("bench", "torch.nn:ReLU", "--input-size", "3x"), 2, "such as 3x224x224"),
    (("bench", "lenet5", "--dry-run", "--format", "csv"), 2, "table or json"),
    (("runs", "show", "zzz"), 2, "zzz"),
    (("runs", "sql", "drop table run"), 2, "SELECT"),
    (("runs", "export", "latest", "--format", "parquet"), 2, "latest"),
    (("runs", "import", "/nowhere.json"), 2, "/nowhere.json"),
    (("report", "zzz"), 2, "zzz"),
    (("reproduce", "run", "table-9"), 2, "table-9"),
    (("recipes", "show", "pooling-layer"), 2, "did you mean"),
    (("convert-config", "/nowhere.dnnmark"), 2, "no such file"),
    (("train", "lenet5", "--data", "fashion-mnist", "--resume"), 2, "--checkpoint"),
    (("train", "lenet5", "--data", "fashion-mnist", "--optimizer", "sdg"), 2, "sdg"),
    (("train", "lenet5", "--data", "fashion-mnist", "--clip-norm", "0"), 2, "--clip-norm"),
    (("train", "lenet5", "--data", "fashion-mnist", "--lr", "-1"), 2, "--learning-rate (--lr): "),
    (("train", "lenet5", "--data", "/nowhere"), 2, "/nowhere"),
    (("--log", "loud", "env"), 2, "loud"),
]


@pytest.mark.parametrize(("words", "code", "expected"), BAD, ids=[" ".join(words) for words, _, _ in BAD])
def test_bad_input_is_one_clear_message(lamina: Lamina, words: tuple[str, ...], code: int, expected: str) -> None:
    result = lamina(*words)
    message = re.sub(r"[│╭╮╰╯─\s]+", " ", result.stderr)
    assert result.exit_code == code, result.output
    assert expected in message and "Traceback" not in message


@pytest.mark.parametrize("name", ["x.toml", "x.dnnmark", "x.dnntemplate"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x00", b"\xff\xfe\xfa", b"[Foo]\n", os.urandom(100_000), b"a" * 17_000_000, b"[[layer]]\ntype='add'\n"],
    ids=["empty", "nul", "binary", "unknown", "noise", "huge", "incomplete"],
)
def test_hostile_files_exit_two(lamina: Lamina, tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = lamina("bench", str(path), "--dry-run")
    assert result.exit_code == 2 and name in result.stderr
    assert len(result.stderr) < 10_000


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\x00" + b"\x01" * 5000])
def test_a_store_that_is_none_exits_two(lamina: Lamina, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(content)
    result = lamina("bench", "lenet5", *QUICK, "--store", str(path))
    assert result.exit_code == 2 and "broken.db" in result.stderr
    assert path.read_bytes() == content, "a file that is not lamina's was written to"


def test_a_folder_as_store_exits_two(lamina: Lamina, tmp_path: Path) -> None:
    assert lamina("runs", "ls", "--store", str(tmp_path)).exit_code == 2


def test_killed_at_any_moment_no_committed_row_is_lost(tmp_path: Path, lamina: Lamina) -> None:
    roofs("cpu", tmp_path / "cache")  # small, and read by the process
    store = tmp_path / "lamina.db"
    words = ["bench", "lenet5", *QUICK, "--store", str(store)]
    command = [sys.executable, "-m", "lamina", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rows() -> int:
        if not store.exists():
            return 0
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as database:
            try:
                return int(database.execute("select count(*) from measurement").fetchone()[0])
            except sqlite3.OperationalError:
                return 0

    try:
        while rows() < 5 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    kept = rows()
    assert kept >= 5
    assert lamina(*words, "--resume").exit_code == 0
    with sqlite3.connect(store) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert database.execute("select count(*), min(status) from run").fetchone() == (1, "done")
        times = database.execute("select count(*) from measurement where median_us is not null").fetchone()
    assert times[0] == 26 + 1  # 27 phases less the first gradient, which training does not need; and the whole step


def test_layers_that_a_plan_folds_are_timed_unfolded_and_a_line_says_so(tmp_path: Path, capsys: Any) -> None:
    method = "eliminated[recovery=least_squares,keep=0.5,fold=true]"
    layers = [PlannedLayer(name=name, type="Linear", method=method) for name in "abcd"]
    write_plan(Plan(network="lenet5", goal="infer", batch=1, layers=tuple(layers)), tmp_path / "plan.toml")
    assert options.plan(tmp_path)["plan"]["a"] == "eliminated[recovery=scale,keep=0.5]"
    assert capsys.readouterr().err.startswith("--plan: a, b, c, ...: timed without folding; 'lamina apply'")
