"""Layers that end their process or make the GPU unusable: their rows fail, and the rest is measured."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests import forked
from tests.cli.conftest import Lamina

from lamina.errors import INTERNAL, DeviceLostError
from lamina.store import open_store

NETWORKS = """
import os, signal, sys
import torch
from torch import nn
from lamina import measure
from lamina.record import Roofs

ROOFS = Roofs("test", "2026-01-01", 1, {"torch": "0"}, 10.0, 8.0, {"fp32": 100.0}, 5.0, 5.0)
measure.roofs = lambda device, cache_dir, refresh=False: ROOFS

class Ends(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.end = end
    def forward(self, x):
        if not isinstance(x, torch._subclasses.FakeTensor):
            self.end()
        return x + 2

def lose():
    measure.lost = lambda device: "CUDA error: device-side assert triggered"
    raise RuntimeError("CUDA error: device-side assert triggered")

def wait():
    print("waiting", file=sys.__stdout__, flush=True)
    signal.pause()

def small(end):
    return nn.Sequential(nn.Linear(8, 6), Ends(end), nn.ReLU(), nn.Linear(6, 4))

def crashes(): return small(lambda: os.kill(os.getpid(), signal.SIGSEGV))
def exits(): return small(lambda: os._exit(7))
def loses(): return small(lose)
def waits(): return small(wait)

class EndsTraced(nn.Module):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGSEGV)

def crashes_traced(): return nn.Sequential(nn.Linear(8, 6), EndsTraced())
def exits_built(): os._exit(3)
"""


START = [sys.executable, "-m", "lamina"]
Run = Callable[[list[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """``bench`` of one of the networks above."""
    (tmp_path / "networks.py").write_text(NETWORKS)
    quick = ("--input-size", "8", "-b", "2", "--device", "cpu", "--repeat", "2", "--store", str(tmp_path / "lamina.db"))
    return ["bench", *quick]


@pytest.fixture
def lamina_process(tmp_path: Path) -> Run:
    """Runs a command in a process of its own, which PyTorch need not be imported into."""
    return lambda words: forked.run(words, tmp_path, environment(tmp_path))


@pytest.fixture
def new_process(tmp_path: Path) -> Run:
    """Runs a command as a shell does."""
    return partial(subprocess.run, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "LAMINA_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}


ENDINGS = {
    "crashes": "it ended its process (SIGSEGV)",
    "exits": "it ended its process (exit code 7)",
    "loses": "CUDA error: device-side assert triggered",
}


@pytest.mark.parametrize(("start", "networks"), [("lamina_process", [*ENDINGS]), ("new_process", ["crashes"])])
def test_layers_that_end_their_process_are_failed_rows_and_finished_networks_are_not_measured_again(
    tmp_path: Path, command: list[str], start: str, networks: list[str], request: pytest.FixtureRequest
) -> None:
    targets = ["torch.nn:ReLU", *(f"networks:{network}" for network in networks)]
    words = [*command, *targets, "--format", "json"]
    done = request.getfixturevalue(start)([*START, *words] if start == "new_process" else words)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    rows = json.loads(done.stdout)
    assert {row["target"] for row in rows} == {*targets}
    for network, reason in ((network, ENDINGS[network]) for network in networks):
        assert f"1 (dense): {reason}; going on without it in a new process" in done.stderr
        own = [row for row in rows if row["target"] == f"networks:{network}"]
        outcomes = {(row["layer"], row["phase"]): row["outcome"] for row in own}
        assert len(outcomes) == len(own)
        failed = {at for at, outcome in outcomes.items() if outcome == "failed"}
        assert failed == {("1", "forward"), ("1", "backward_data"), (f"networks:{network}", "step")}
        assert {row["reason"] for row in own if row["layer"] == "1"} == {reason}
        assert Counter(outcomes.values())["ok"] == 7
    with open_store(tmp_path / "lamina.db") as store:
        assert [(this.target, this.status) for this in store.runs()] == [(one, "done") for one in reversed(targets)]
    assert not list(tmp_path.glob("lamina-*.json"))


@pytest.mark.parametrize("check", ["--check", "--no-check"])
def test_a_profile_goes_on_without_the_layer(
    tmp_path: Path, command: list[str], lamina_process: Run, check: str
) -> None:
    targets = ["networks:crashes", "networks:loses"]
    words = [*command, *targets, "torch.nn:ReLU", check, "--format", "json"]
    words[words.index("bench")] = "profile"
    done = lamina_process(words)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.count("going on without it in a new process") == 2
    rows = json.loads(done.stdout)
    for target in targets:
        own = {(row["layer"], row["phase"]): row for row in rows if row["target"] == target}
        failed = {at: row["reason"] for at, row in own.items() if row["outcome"] == "failed"}
        assert {*failed} == {("1", "forward"), ("1", "backward_data"), (target, "step")}
        assert failed[target, "step"] == "it contains 1, which must not run"
        timed = {at for at, row in own.items() if row["outcome"] == "ok"}
        assert timed >= {("0", "forward"), ("0", "backward_weight"), ("3", "forward"), ("3", "backward_data")}
    assert all(row["outcome"] != "failed" for row in rows if row["target"] not in targets)
    with open_store(tmp_path / "lamina.db") as store:
        assert [run.status for run in store.runs()] == ["done"] * 3


def test_what_ifs_go_on_without_the_change(tmp_path: Path, command: list[str], lamina_process: Run) -> None:
    (tmp_path / "networks.py").write_text(
        NETWORKS
        + """
from lamina.pipeline.what_if import fusions

def fuses():
    made = fusions._fusers
    ending = lambda module: nn.Sequential(*module, Ends(lambda: os.kill(os.getpid(), signal.SIGSEGV)))
    fusions._fusers = lambda stage, module, only=None: (
        made(stage, module, only) if only else {"a kernel that crashes": lambda: ending(module)}
    )
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
"""
    )
    words = [*command, "networks:fuses", "--change", "fusion,without-activations", "--format", "json"]
    words[words.index("bench")] = "what-if"
    done = lamina_process(words)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "0 (fusion, linear + bias + relu by a kernel that crashes): it ended its process (SIGSEGV)" in done.stderr
    rows = json.loads(done.stdout)
    reasons = {(row["change"], row["layer"], row["phase"]): row["reason"] for row in rows}
    assert reasons["fusion", "0", "forward"] == reasons["fusion", "0", "step"] == "it ended its process (SIGSEGV)"
    assert reasons["without_activations", "networks:fuses", "step"] == ""
    assert len(rows) == len({(row["change"], row["detail"], row["layer"], row["phase"]) for row in rows})


def test_a_study_goes_on_without_the_candidate(tmp_path: Path, command: list[str], lamina_process: Run) -> None:
    (tmp_path / "networks.py").write_text(
        NETWORKS
        + """
def tried():
    from lamina.pipeline.study import layers
    trials = layers.trials_of
    layers.trials_of = lambda attempt, *more: (
        trials(attempt, *more) if attempt.refusal or attempt.layer != "0" else os.kill(os.getpid(), signal.SIGSEGV)
    )
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
"""
    )
    words = [*command, "networks:tried", "--impl", "fused", "--mode", "eager", "--precision", "fp32", "--no-rivals"]
    del words[words.index("--repeat") : words.index("--repeat") + 2]
    words[words.index("bench")] = "study"
    done = lamina_process([*words, "--fresh", "--output", str(tmp_path / "plan"), "--format", "json"])
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "0, fused (study): it ended its process (SIGSEGV); going on without it" in done.stderr
    (refused,) = [one for one in json.loads(done.stdout)["trials"] if "SIGSEGV" in one["reason"]]
    assert (refused["layer"], refused["impl"]) == ("0", "fused")
    assert (tmp_path / "plan" / "plan.toml").is_file()


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_processes(tmp_path: Path, command: list[str], ended_by: signal.Signals) -> None:
    words = [*START, *command, "networks:waits"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.send_signal(ended_by)
        try:
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + ended_by
    word = "interrupted" if ended_by is signal.SIGINT else "terminated"
    assert f"lamina: {word}; the same command with --resume goes on from what is stored" in error
    assert "going on" not in error and "Traceback" not in error


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is of Linux")
def test_the_working_process_dies_with_the_waiting_one(tmp_path: Path, command: list[str]) -> None:
    words = [*START, *command, "networks:waits"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.kill()
        assert process.stdout.read() == ""  # its end: both processes have closed it


def test_a_program_that_calls_the_command_is_not_forked(
    lamina: Lamina, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lamina import measure

    monkeypatch.setattr(measure, "lost", lambda device: "CUDA error: an illegal memory access was encountered")
    result = lamina("bench", "lenet5", "--device", "cpu", "-b", "2")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "features.0 made the GPU unusable for this process: CUDA error: an illegal" in result.stderr
    assert "go on in a new process" in str(DeviceLostError("conv", "why"))


@pytest.mark.parametrize(("name", "ending"), [("crashes_traced", "SIGSEGV"), ("exits_built", "exit code 3")])
def test_a_process_that_ends_outside_a_layer_says_so(
    command: list[str], lamina_process: Run, name: str, ending: str
) -> None:
    done = lamina_process([*command, f"networks:{name}"])
    assert done.returncode == INTERNAL
    assert f"lamina: the process was ended ({ending}) by the network" in done.stderr
