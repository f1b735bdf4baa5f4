"""Processes that begin at once: each is forked from one that has imported PyTorch and done nothing else.

Where the start of a process is not what is tested, this saves the five seconds that importing takes.
"""

import atexit
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import torch.multiprocessing

IMPORTED = ["torch._dynamo", "torch.export", "torch.distributed", "lamina.cli", "lamina.store.store", "alembic.command"]
IMPORTED += [f"lamina.pipeline.{name}" for name in ("bench", "profile", "study", "what_if")]
IMPORTED += ["benchmarks.gauntlet.cells"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)

Pipe = CONTEXT.Pipe
spawn = partial(torch.multiprocessing.start_processes, start_method="forkserver")
"""In place of torch.multiprocessing.spawn."""


def Process(target: Callable[..., None], args: tuple[Any, ...] = (), daemon: bool | None = None) -> BaseProcess:
    """A process with this one's environment and folder, as multiprocessing's."""
    return CONTEXT.Process(target=_as_here, args=({**os.environ}, os.getcwd(), target, args), daemon=daemon)


def run(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> "CompletedProcess[str]":
    """``lamina`` with some words, as subprocess.run gives it."""
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder, "out"), Path(folder, "error")
        process = CONTEXT.Process(target=_as_here, args=({**env}, str(cwd), _lamina, (words, str(out), str(error))))
        process.start()
        process.join()
        return CompletedProcess(words, process.exitcode or 0, out.read_text(), error.read_text())


def program(text: str, *arguments: str, error: Path) -> BaseProcess:
    """Start a program, given as its text, with arguments and a file for what it says on stderr."""
    process = Process(target=_program, args=(text, arguments, str(error)))
    process.start()
    return process


def _program(text: str, arguments: Sequence[str], error: str) -> None:
    _redirect(2, error)
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})


def _as_here(environment: dict[str, str], folder: str, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # a variable says where it is
    target(*args)


def _lamina(words: Sequence[str], out: str, error: str) -> None:
    from lamina.cli import main

    _redirect(1, out)
    _redirect(2, error)
    sys.argv = ["lamina", *words]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # of every process that main forks, which multiprocessing leaves out


def _redirect(descriptor: int, path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
