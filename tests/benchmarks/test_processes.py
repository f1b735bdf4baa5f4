"""Pieces of work in processes of their own: their rows, and what one that crashes leaves."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import forked

from benchmarks import processes
from benchmarks.processes import each_in_a_process
from lamina import measure


def work(name: str) -> list[dict[str, Any]]:
    if name == "crash":
        os._exit(1)
    with measure.beside(), measure.alone():
        return [{"name": name, "process": os.getpid()}]


def endless(begun: Path) -> list[dict[str, Any]]:
    begun.touch()
    while True:
        time.sleep(1)


def test_a_process_that_crashes_leaves_the_others_their_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(processes, "get_context", lambda method: forked.CONTEXT)
    found = [row for rows in each_in_a_process(work, [("crash",), ("a",), ("b",)], 2) for row in rows]
    assert sorted(row["name"] for row in found) == ["a", "b"]
    assert len({row["process"] for row in found} | {os.getpid()}) == 3
    assert "('crash',) FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("processes", [1, 2])
def test_nothing_is_started_after_the_limit(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    assert [row for rows in each_in_a_process(work, [("a",)], processes, until=0.0) for row in rows] == []


def test_what_still_runs_at_the_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setattr(processes, "get_context", lambda method: forked.CONTEXT)
    monkeypatch.setattr(processes, "time", SimpleNamespace(time=lambda: 2.0 if begun.exists() else 0.0))
    assert list(each_in_a_process(endless, [(begun,), (begun,)], 2, end=1.0)) == []
    assert capsys.readouterr().out.count("FAILED: ended at the time limit") == 2


def test_one_process_is_this_one() -> None:
    assert list(each_in_a_process(work, [("a",)], 1)) == [[{"name": "a", "process": os.getpid()}]]
