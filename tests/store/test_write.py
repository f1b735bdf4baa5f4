"""Several processes write at once, and a killed one loses nothing that it was told is written."""

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lamina.record import LayerRun, Run
from lamina.store import open_store

MakeRun = Callable[..., Run]
Process = Callable[..., "subprocess.Popen[str]"]
Writers = Callable[..., "list[subprocess.Popen[str]]"]

WRITER = """
import sys
from lamina.record import LayerRun, Run, Timing
from lamina.store import open_store

address, run_id, rows = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
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


@pytest.fixture
def writers(process: Process) -> Callable[..., "list[subprocess.Popen[str]]"]:
    """Starts writers, one for each run, that begin at once."""

    def start(address: str, rows: int, *run_ids: str) -> "list[subprocess.Popen[str]]":
        started = [process(WRITER, address, run_id, str(rows)) for run_id in run_ids]
        for writer in started:
            assert writer.stdout and writer.stdout.readline() == "ready\n"
        for writer in started:
            assert writer.stdin
            writer.stdin.write("\n")
            writer.stdin.flush()
        return started

    return start


def finish(writers: "list[subprocess.Popen[str]]", rows: int) -> None:
    for writer in writers:
        output, errors = writer.communicate(timeout=200)
        assert (writer.returncode, errors, len(output.split())) == (0, "", rows)


def test_four_processes_make_and_fill_one_database(shared_address: str, writers: Writers) -> None:
    finish(writers(shared_address, 50, "own0", "own1", "own2", "own3"), 50)
    with open_store(shared_address) as store:
        assert {run.id for run in store.runs()} == {"own0", "own1", "own2", "own3"}
        for run in store.runs():
            layers = store.layers(run.id)
            assert {layer.impl for layer in layers} == {f"dense-{row}" for row in range(50)}
            assert store.query(f"SELECT count(*) FROM layer WHERE run_id = '{run.id}'")[1] == ((5,),)
        assert store.query("SELECT count(*) FROM environment")[1] == ((1,),)


def test_two_processes_share_a_run_and_its_layers(shared_address: str, writers: Writers, a_run: MakeRun) -> None:
    with open_store(shared_address) as store:
        store.begin(a_run("shared"))
        finish(writers(shared_address, 25, "shared/a", "shared/b"), 25)
        assert len({layer.key for layer in store.layers("shared")}) == 50
        assert store.query("SELECT count(*) FROM layer")[1] == ((5,),)


@pytest.mark.parametrize("lines", [1, 40])
def test_a_killed_writer_loses_no_row_it_was_told_is_written(shared_address: str, writers: Writers, lines: int) -> None:
    (writer,) = writers(shared_address, 1_000_000, "own")
    assert writer.stdout and writer.stderr
    for _ in range(lines):
        writer.stdout.readline()
    writer.kill()
    told = lines + writer.stdout.read().count("\n")  # what was read ahead, too, which communicate() would miss
    assert writer.stderr.read() == ""
    with open_store(shared_address) as store:
        unfinished = store.unfinished("f")
        assert unfinished and (unfinished.id, unfinished.status) == ("own", "running")
        written = sorted(int(layer.impl.removeprefix("dense-")) for layer in store.layers("own"))
        assert written == list(range(len(written)))
        assert len(written) in (told, told + 1)  # a row may be written and not yet told
        store.resume("own")
        store.finish("own", "done", "2026-01-02")
    if Path(shared_address).is_file():
        assert integrity(shared_address) == [("ok",)]


def integrity(path: str) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


def test_a_reader_sees_one_state_while_another_writes(
    shared_address: str, a_run: MakeRun, a_layer_run: Callable[..., LayerRun]
) -> None:
    with open_store(shared_address) as reader, open_store(shared_address) as writer:
        writer.begin(a_run())
        for batch in range(3):
            writer.add("20260102-abc", a_layer_run(batch=batch))
            assert len(reader.layers("20260102-abc")) == batch + 1
