"""Commands in forks of a process that has imported PyTorch and lamina, so that one costs no import of seconds."""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("build", "cli", "measure", "pipeline", "record", "run", "simulate", "spec", "store")
CACHE = "cache"
"""A folder of a command that is its own cache: what it measures is for nobody else."""


def warm_up() -> None:
    """Import what commands import. This process must run no operator of PyTorch, whose threads do not survive forks."""
    for package in PACKAGES:
        found = importlib.import_module(f"lamina.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            if ".migrations" not in module.name and ".ray" not in module.name and ".dask" not in module.name:
                importlib.import_module(module.name)


@dataclass
class Command:
    """A running command, the leader of a process group of its own."""

    pid: int
    folder: Path

    def wait(self, limit_s: float) -> int | None:
        """The exit code, negative for a signal; ``None`` if it still runs after ``limit_s``."""
        end = time.monotonic() + limit_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                return None
            time.sleep(0.005)

    def kill(self) -> None:
        """kill -9 of the whole group."""
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def said(self) -> str:
        """The end of what it printed."""
        return (self.folder / "output.txt").read_text(errors="replace")[-2000:]


def start(words: Sequence[str], folder: Path) -> Command:
    """Run ``lamina WORDS`` in ``folder``."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(list(words), folder)
    while os.getpgid(pid) != pid:  # until it leads its own group, it must not be killed by it
        time.sleep(0.001)
    return Command(pid, folder)


def _become(words: list[str], folder: Path) -> None:
    code: object = 70
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if (folder / CACHE).is_dir():
            os.environ["LAMINA_CACHE_DIR"] = str(folder / CACHE)
        from lamina import cli

        cli.isolated.enabled = True
        sys.argv = ["lamina", *words]
        try:
            cli.app(words)
        except SystemExit as end:
            code = end.code or 0
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 1)
