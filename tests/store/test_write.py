"""Several processes write at once, and a killed one loses nothing that it was told is written."""

import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.record import LayerRun, Run
from lamina.store import open_store

MakeRun = Callable[..., Run]
Process = Callable[..., "subprocess.Popen[str]"]

WRITER = """
import sys
from lamina.record import LayerRun, Run, Timing
from lamina.store import open_store

address, run_id, rows = sys.argv[1:]
sys.stdin.readline()  # so that all begin at once
with open_store(address) as store:
    if run_id.startswith("own"):
        store.begin(Run(run_id, "bench", "t", "c", "2026-01-01", "f", {}, {"torch": "2.13.0"}))
        part = ""
    else:
        run_id, part = run_id.split("/")
    for row in range(int(rows)):
        layer = LayerRun(
            f"layer{row % 5}", "linear", row % 5, "forward", f"dense{part}-{row}", "fp32", "nchw", 1, "cpu",
            ((1, 8),), (1, 8), 64, 128, 256, "ok", timing=Timing("cpu", "-", float(row), 0.0, 1.0, 1),
        )
        store.add(run_id, layer)
        print(row, flush=True)
"""


def start(process: Process, address: str, run_id: str, rows: int) -> "subprocess.Popen[str]":
    return process(WRITER, address, run_id, str(rows))


def go(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdin
    writer.stdin.write("\n")
    writer.stdin.flush()


def test_four_processes_make_and_fill_one_database(shared_address: str, process: Process) -> None:
    writers = [start(process, shared_address, f"own{number}", 50) for number in range(4)]
    for writer in writers:
        go(writer)
    for writer in writers:
        output, errors = writer.communicate(timeout=200)
        assert (writer.returncode, errors, len(output.split())) == (0, "", 50)
    with open_store(shared_address) as store:
        assert {run.id for run in store.runs()} == {"own0", "own1", "own2", "own3"}
        for run in store.runs():
            layers = store.layers(run.id)
            assert {layer.impl for layer in layers} == {f"dense-{row}" for row in range(50)}
            assert store.query(f"SELECT count(*) FROM layer WHERE run_id = '{run.id}'")[1] == ((5,),)
        assert store.query("SELECT count(*) FROM environment")[1] == ((1,),)


def test_two_processes_share_a_run_and_its_layers(shared_address: str, process: Process, a_run: MakeRun) -> None:
    with open_store(shared_address) as store:
        store.begin(a_run("shared"))
        writers = [start(process, shared_address, f"shared/{part}", 25) for part in "ab"]
        for writer in writers:
            go(writer)
        for writer in writers:
            _, errors = writer.communicate(timeout=200)
            assert (writer.returncode, errors) == (0, "")
        assert len({layer.key for layer in store.layers("shared")}) == 50
        assert store.query("SELECT count(*) FROM layer")[1] == ((5,),)


@pytest.mark.parametrize("lines", [1, 40])
def test_a_killed_writer_loses_no_row_it_was_told_is_written(shared_address: str, process: Process, lines: int) -> None:
    writer = start(process, shared_address, "own", 1_000_000)
    go(writer)
    assert writer.stdout
    told = [writer.stdout.readline() for _ in range(lines)]
    writer.kill()
    rest, errors = writer.communicate(timeout=100)
    told += rest.splitlines()
    if not rest.endswith("\n"):
        told.pop()  # cut off by the kill, or empty
    assert errors == ""
    with open_store(shared_address) as store:
        found = [layer.impl for layer in store.layers("own")]
        assert store.run("own").status == "running"
        unfinished = store.unfinished("f")
        assert unfinished
        assert unfinished.id == "own"
        written = sorted(int(impl.removeprefix("dense-")) for impl in found)
        assert written == list(range(len(written)))
        assert len(written) - len(told) in (0, 1, 2)  # written, but not yet told
        store.resume("own")
        store.finish("own", "done", "2026-01-02")
    if Path(shared_address).is_file():
        assert sqlite3.connect(shared_address).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_reader_sees_one_state_while_another_writes(
    shared_address: str, a_run: MakeRun, a_layer_run: Callable[..., LayerRun]
) -> None:
    with open_store(shared_address) as reader, open_store(shared_address) as writer:
        writer.begin(a_run())
        for batch in range(3):
            writer.add("20260102-abc", a_layer_run(batch=batch))
            assert len(reader.layers("20260102-abc")) == batch + 1
