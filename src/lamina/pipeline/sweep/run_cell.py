"""Runs one cell as ``python -m lamina ...`` with a store of its own, and brings back what it stored."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lamina.errors import INTERNAL, LaminaError
from lamina.pipeline.sweep.engines.limits import Limits, descendants

LOG_BYTES = 4096
"""At most so much of a cell's last output is kept."""


@dataclass(frozen=True)
class CellTask:
    """A cell to run: its key, the words after ``lamina``, the working directory, and its limits."""

    key: str
    words: tuple[str, ...]
    folder: str
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class CellResult:
    """What a cell did. ``reason`` is why it failed; empty if it did not. ``documents`` are its runs, exported.

    ``killed``: a signal from outside or a defect ended it, so that another attempt may succeed.
    """

    reason: str
    killed: bool
    seconds: float
    documents: tuple[dict[str, Any], ...]


def run_cell(task: CellTask) -> CellResult:
    """Run a cell to its end, or until it exceeds a limit. What it stored before is kept in either case."""
    with tempfile.TemporaryDirectory(prefix="lamina-sweep-") as folder:
        store, log = Path(folder) / "cell.db", Path(folder) / "log"
        command = [sys.executable, "-m", "lamina", *task.words, "--store", str(store)]
        started = datetime.now(UTC)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                cwd=task.folder if Path(task.folder).is_dir() else None,
            )
            try:
                reason = task.limits.wait(process)
            finally:
                _end(process)
        seconds = max(0.0, (datetime.now(UTC) - started).total_seconds())
        code = process.returncode
        killed = not reason and (code < 0 or code == INTERNAL)
        if code and not reason:
            reason = _last_line(log) or (signal.Signals(-code).name if code < 0 else f"exit code {code}")
        return CellResult(reason, killed, seconds, _documents(store))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and the processes that it started, if it still runs."""
    if process.poll() is None:
        for pid in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    """The message that a command ended with."""
    lines = [line.strip() for line in log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()]
    said = [line for line in lines if line.startswith("lamina: ")] or [line for line in lines if line]
    return said[-1].removeprefix("lamina: ") if said else ""


def _documents(store: Path) -> tuple[dict[str, Any], ...]:
    """All runs of a store, the oldest first; none where there is no store or it is damaged."""
    from lamina.store import open_store

    if not store.exists():
        return ()
    try:
        with open_store(store) as database:
            return tuple(database.export_run(run.id) for run in reversed(database.runs(limit=None)))
    except LaminaError:
        return ()
