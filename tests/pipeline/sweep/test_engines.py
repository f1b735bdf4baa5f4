"""Engines: every task has one outcome, limits hold, and what was killed is tried again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.processes import ended, needs_proc

from lamina.errors import MissingError, UsageError
from lamina.pipeline.sweep.attempts import attempt
from lamina.pipeline.sweep.engines import Call, Limits, Lost, Outcomes, Worker, engine_of
from lamina.pipeline.sweep.engines.limits import descendants, resident_bytes
from lamina.pipeline.sweep.engines.local import Local

NO_LIMITS = Limits()


def test_every_task_has_its_result() -> None:
    assert dict(Local(2).map(abs, range(-20, 0), NO_LIMITS)) == {task: -task for task in range(-20, 0)}
    assert list(Local(2).map(abs, [], NO_LIMITS)) == []


def test_an_exception_of_the_function_ends_the_sweep() -> None:
    with pytest.raises(ZeroDivisionError):
        list(Local(1).map(partial(divmod, 1), [1, 0], NO_LIMITS))


def test_output_of_a_function_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    worker = Worker()
    assert worker.call(print, "hello", NO_LIMITS) is None
    worker.close()
    assert capfd.readouterr().err == "hello\n"


def test_a_task_beyond_its_time_is_killed_and_the_others_go_on() -> None:
    outcomes = dict(Local(1).map(time.sleep, [0.0, 60.0, 0.01], Limits(seconds=0.3)))
    assert outcomes == {0.0: None, 60.0: Lost("time limit of 0.3 s exceeded", "limit"), 0.01: None}


@needs_proc
def test_a_task_beyond_its_memory_is_killed() -> None:
    worker = Worker()
    hold = f"import time; held = bytearray({300 * 2**20}); time.sleep(60)"
    outcome = worker.call(subprocess.call, [sys.executable, "-c", hold], Limits(seconds=30, memory_bytes=200 * 2**20))
    assert isinstance(outcome, Lost) and outcome.reason.startswith("memory limit of 200 MiB exceeded: ")
    assert worker.call(abs, -1, Limits(memory_bytes=200 * 2**20)) == 1  # in a new process
    worker.close()


@needs_proc
def test_memory_is_that_of_the_process_and_those_below() -> None:
    assert resident_bytes(os.getpid()) > 10 * 2**20
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in descendants(os.getpid())
        child.kill()


def test_gpus_are_assigned_to_workers() -> None:
    seen = {found for _, found in Local(2, ("0", "GPU-7")).map(os.getenv, ["CUDA_VISIBLE_DEVICES"] * 8, NO_LIMITS)}
    assert seen <= {"0", "GPU-7"} and seen


@needs_proc
def test_closing_ends_the_workers_and_what_they_started() -> None:
    before = set(descendants(os.getpid()))
    outcomes = Local(2).map(subprocess.call, [["sleep", "0"], ["sleep", "60"], ["sleep", "61"]], NO_LIMITS)
    assert next(outcomes) == (["sleep", "0"], 0)
    outcomes.close()
    assert set(descendants(os.getpid())) == before


@needs_proc
def test_a_worker_s_processes_end_with_the_one_that_uses_it() -> None:
    code = "from lamina.pipeline.sweep.engines import *; Worker().call(__import__('subprocess').call, ['sleep', '60'],"
    with subprocess.Popen([sys.executable, "-c", f"{code} Limits())"]) as driver:
        while len(below := descendants(driver.pid)) < 2:
            time.sleep(0.02)
        driver.kill()
    assert all(ended(pid) for pid in below)


@needs_proc
def test_a_killed_process_is_lost_and_its_task_tried_again() -> None:
    before = {*descendants(os.getpid())}

    def kill() -> None:
        while not (found := [pid for pid in descendants(os.getpid()) if pid not in before]):
            time.sleep(0.01)
        time.sleep(1.0)
        os.kill(found[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    (done,) = attempt(Local(1), time.sleep, [2.0])
    killer.join()
    assert done == (2.0, None, 2)


class Losing:
    """Loses each task so many times."""

    def __init__(self, times: int, cause: Any = "killed") -> None:
        self.times, self.cause = times, cause
        self.rounds: list[list[int]] = []

    def map(self, function: Call, tasks: Sequence[Any], limits: Limits) -> Outcomes[Any]:
        self.rounds.append(list(tasks))
        for task in tasks:
            lost = len(self.rounds) <= self.times and task % 2
            yield task, Lost("gone", self.cause) if lost else function(task)


def test_attempts_have_a_limit() -> None:
    engine = Losing(2)
    assert list(attempt(engine, abs, [-1, -2, -3], retries=2)) == [(-2, 2, 1), (-1, 1, 3), (-3, 3, 3)]
    assert engine.rounds == [[-1, -2, -3], [-1, -3], [-1, -3]]
    assert list(attempt(Losing(2), abs, [-1], retries=1)) == [(-1, Lost("gone"), 2)]
    assert list(attempt(Losing(2), abs, [-1], retries=0)) == [(-1, Lost("gone"), 1)]


def test_a_limit_is_not_exceeded_again() -> None:
    engine = Losing(1, "limit")
    assert list(attempt(engine, abs, [-1])) == [(-1, Lost("gone", "limit"), 1)] and len(engine.rounds) == 1


def test_engines_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'rai' is unknown: did you mean 'ray'"):
        engine_of("rai:auto", None)
    with pytest.raises(UsageError, match="local has no address"):
        engine_of("local:8", None)
    with pytest.raises(UsageError, match="workers = 0"):
        Local(0)
    for name, package in (("ray", "ray"), ("dask", "distributed")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingError, match=r"pip install 'lamina\[cluster\]'"):
            engine_of(name, 1)
