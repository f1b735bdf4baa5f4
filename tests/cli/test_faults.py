"""Faults of the machine end a command with one message, its exit code, and a run that says how it ended."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from lamina.cli.handled import end_cleanly_on_sigterm, handled
from lamina.errors import INTERNAL, INTERRUPTED, TERMINATED
from lamina.pipeline.runs import closing
from lamina.record import Run
from lamina.store import Store, open_store

Ends = Callable[[Callable[[], object]], Result]


@pytest.fixture
def signals() -> Iterator[None]:
    """SIGTERM and SIGINT as at the start of a command, and as they were after it."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_cleanly_on_sigterm()
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ends:
    """How a command that does this ends."""
    monkeypatch.setenv("LAMINA_CACHE_DIR", str(tmp_path))

    def run(what: Callable[[], object]) -> Result:
        def command() -> None:
            what()

        app = typer.Typer()
        app.command()(handled(command))
        return CliRunner().invoke(app)

    return run


def a_run(store: Store) -> str:
    store.begin(Run("a", "bench", "n", "lamina bench n", "2026-01-02T03:04:05+00:00", "f", {}, {"device": "chip"}))
    return "a"


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGTERM, TERMINATED, "terminated"), (signal.SIGINT, INTERRUPTED, "interrupted")]
)
def test_a_signal_ends_cleanly_and_the_run_says_so(ends: Ends, sent: signal.Signals, code: int, word: str) -> None:
    with open_store(":memory:") as store:

        def work() -> None:
            with closing(store, a_run(store)):
                os.kill(os.getpid(), sent)
                time.sleep(30)

        result = ends(work)
        assert result.exit_code == code == 128 + sent and result.stderr == f"lamina: {word}\n"
        assert store.run("a").status == "interrupted" and store.run("a").finished


@pytest.mark.usefixtures("signals")
def test_a_second_signal_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_file_of_the_command_that_cannot_be_used_is_no_defect(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, "x", "/proc/none.html")

    assert ends(fail).exit_code == INTERNAL  # lamina's own file
    monkeypatch.setattr(sys, "argv", ["lamina", "report", "-o", "/proc/none.html"])
    result = ends(fail)
    assert result.exit_code == 1
    assert result.stderr.startswith("lamina: /proc/none.html: No such file or directory: name another file")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "x", "a.html"), "a.html: No space left on device: free some space and run again"),
        (OSError(errno.EROFS, "x", "a.html"), "a.html: Read-only file system: name a folder that may be written to"),
        (PermissionError(errno.EACCES, "x", "a"), "a: Permission denied: name a file that may be read and written"),
        (OSError(errno.EMFILE, "x"), "Too many open files: too many files are open: see 'ulimit -n'"),
        (ValueError("I/O error: full (os error 28)"), "No space left on device: free some space"),
        (MemoryError(), "out of host memory: choose a smaller batch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of host memory: choose a smaller batch"),
    ],
)
def test_what_the_machine_lacks_is_no_defect(ends: Ends, tmp_path: Path, error: Exception, message: str) -> None:
    def fail() -> None:
        raise error

    result = ends(fail)
    assert result.exit_code == 1 and result.stderr.startswith(f"lamina: {message}")
    assert not list(tmp_path.iterdir())  # no traceback


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_stdout_on_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "lamina", "models"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("lamina: No space left on device: free some space")


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_pipe_whose_reader_has_left_ends_a_command_silently(form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "lamina", "models", "--format", form]
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and not done.stderr


def test_a_clock_that_goes_backwards_loses_nothing() -> None:
    later, earlier = "2030-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00"
    with open_store(":memory:") as store:
        for name, started in (("a", later), ("b", earlier)):
            store.begin(Run(name, "bench", "n", "lamina bench n", started, "f", {}, {"device": "chip"}))
            store.finish(name, "interrupted", earlier)
        assert {run.id for run in store.runs()} == {"a", "b"} and store.unfinished("f") is not None
        store.resume("a")
        store.finish("a", "done", earlier)  # before it began
        assert store.run("a").status == "done" and store.unfinished("f").id == "b"
