"""How commands end when something goes wrong that nobody foresaw."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Lamina

from lamina import measure, pipeline
from lamina.store import open_store

ROOFS: Any = import_module("lamina.measure.roofs")  # the package's name is its function


def test_an_unexpected_error_is_one_message_and_a_file(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, watch: object, **__: object) -> None:
        watch(pipeline.Planned("lenet5", "dense fp32 nchw batch 2", 27))  # type: ignore[operator, arg-type]
        raise IndexError("index 3 is out of bounds\nand more lines")

    monkeypatch.setattr(pipeline, "bench", fail)
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and "Traceback" not in result.output
    message = " ".join(result.stderr.split())
    assert "unexpected IndexError" in message
    assert "(lenet5: dense fp32 nchw batch 2): index 3 is out of bounds" in message
    (file,) = (tmp_path / "cache" / "errors").iterdir()
    assert str(file) in result.stderr
    text = file.read_text()
    assert "Traceback" in text and "and more lines" in text and "lamina 0." in text and "PyTorch" in text


BROKEN = [
    (("bench", "lenet5"), "lamina.pipeline.bench"),
    (("profile", "lenet5"), "lamina.pipeline.profile"),
    (("what-if", "lenet5"), "lamina.pipeline.what_if"),
    (("train", "lenet5", "--data", "fashion-mnist"), "lamina.pipeline.train"),
    (("sparsity", "lenet5", "--data", "fashion-mnist"), "lamina.store.open_store"),
    (("deft", "lenet5", "--data", "fashion-mnist"), "lamina.store.open_store"),
    (("report", "latest"), "lamina.store.open_store"),
    (("explain", "latest"), "lamina.store.open_store"),
    (("compare", "latest", "latest"), "lamina.store.open_store"),
    (("runs", "ls"), "lamina.store.open_store"),
    (("runs", "show", "latest"), "lamina.store.open_store"),
    (("runs", "sql", "SELECT 1"), "lamina.store.open_store"),
    (("simulate", "run", "lenet5"), "lamina.store.open_store"),
    (("simulate", "compaction-engine", "lenet5"), "lamina.store.open_store"),
    (("env",), "lamina.measure.environment"),
]


@pytest.mark.parametrize(("words", "function"), BROKEN, ids=lambda it: " ".join(it) if isinstance(it, tuple) else None)
def test_every_verb_ends_an_unexpected_error_with_a_message(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], function: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(function, fail)
    result = lamina(*words)
    assert result.exit_code == 70 and "Traceback" not in result.output, result.output
    message = " ".join(result.stderr.split())
    assert "unexpected ZeroDivisionError" in message and "results stored before" in message
    (file,) = (tmp_path / "cache" / "errors").iterdir()
    assert "Traceback" in file.read_text() and file.name in "".join(result.stderr.split())


def test_an_error_names_the_layer_and_what_was_measured_is_kept(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lamina import measure

    original, calls = measure.time_each, 0

    def third_time(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise IndexError("list index out of range")
        return original(*arguments, **options)

    quick = ("bench", "lenet5", "--device", "cpu", "--repeat", "2", "-b", "2")
    monkeypatch.setattr(measure, "time_each", third_time)
    result = lamina(*quick)
    message = " ".join(result.stderr.split())
    assert result.exit_code == 70
    assert "unexpected IndexError" in message
    assert "(lenet5: dense fp32 nchw batch 2, classifier.2 (dense), timing by cpu): list index out of range" in message
    with open_store(tmp_path / "lamina.db") as store:
        (this,) = store.runs()
        kept = store.layers(this.id)
        assert this.status == "failed" and {row.layer for row in kept} == {"classifier.4", "classifier.3"}
        assert lamina(*quick, "--resume").exit_code == 0
        (this,) = store.runs()
        assert this.status == "done" and set(kept) < set(store.layers(this.id))


def test_a_traceback_goes_elsewhere_where_the_cache_cannot_be_written(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    (tmp_path / "file").touch()
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pipeline, "find", fail)
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and f"{tmp_path}/error-" in result.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    shell = f"{sys.executable} -m lamina bench resnet152 --dry-run --format json | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == "[\n" and "Traceback" not in done.stderr and "unexpected" not in done.stderr


def test_an_error_outside_of_commands_has_no_traceback() -> None:
    code = (
        "import sys, lamina.cli as cli; sys.argv[1:] = []\n"
        "def app(): raise ZeroDivisionError('by zero')\n"
        "cli.app = app; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "ZeroDivisionError" in done.stderr and "Traceback" not in done.stderr


ONE = "--layer features.1 --phase forward --no-check"  # a layer, in little time
BENCH = f"{sys.executable} -m lamina bench lenet5 --device cpu --repeat 2 -b 2 {ONE}"


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        (f"{BENCH} >&-", 0, "run "),
        (f"{BENCH} >&- 2>&- <&-", 0, ""),
        (f"PYTHONIOENCODING=ascii {BENCH}", 0, "?"),
        (f"{BENCH} --report=/proc/none/report.html", 2, "--report: cannot write in /proc (No such file or directory)"),
        (f"mkdir gone; cd gone; rmdir ../gone; {BENCH}", 2, "lamina: the working directory was deleted"),
    ],
    ids=["no stdout", "no streams", "ascii", "no folder", "no working directory"],
)
def test_a_shell_that_leaves_something_out_gets_results_or_a_message(
    tmp_path: Path, shell: str, code: int, says: str, few_repetitions: None
) -> None:
    cache = tmp_path / "cache"
    measure.roofs("cpu", cache)  # by few repetitions: the command would take seconds to measure the machine's peaks
    place = {"LAMINA_DB": str(tmp_path / "lamina.db"), "LAMINA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | place
    )
    assert done.returncode == code and says in done.stdout + done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "unexpected" not in done.stderr
    if code == 0:
        with open_store(tmp_path / "lamina.db") as store:
            assert [run.status for run in store.runs()] == ["done"]


def test_a_cache_folder_that_cannot_be_made_is_named(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "roofs", ROOFS.roofs)
    monkeypatch.setenv("LAMINA_CACHE_DIR", "/proc/none/cache")
    result = lamina("bench", "lenet5", "--device", "cpu", "-b", "2", *ONE.split())
    assert result.exit_code == 1 and "/proc/none: No such file or directory: name another folder" in result.stderr


def test_a_folder_of_the_cache_that_cannot_be_made_is_named(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "cache").mkdir()
    (folder / "studies").touch()
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(folder))
    output = ["--output", str(tmp_path / "study")]
    result = lamina("study", "lenet5", "--device", "cpu", "--data", "synthetic", "--budget", "20s", *output)
    assert result.exit_code == 1 and f"{folder}/studies/" in result.stderr and "LAMINA_CACHE_DIR" in result.stderr


def test_a_file_that_the_cache_lacks_is_no_fault_of_the_user(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Path(os.environ["LAMINA_CACHE_DIR"]) / "studies" / "journal.jsonl"
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: missing.read_text())
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and "unexpected FileNotFoundError" in " ".join(result.stderr.split())


def test_an_error_of_a_file_descriptor_names_no_file(lamina: Lamina, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["lamina", "bench", "lenet5", "-b", "9"])
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: os.fdopen(10_000))
    result = lamina("bench", "lenet5", "--device", "cpu")
    assert result.exit_code == 70 and "unexpected OSError" in " ".join(result.stderr.split())
