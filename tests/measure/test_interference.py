"""What a busy machine does to times, from invented and real counters."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lamina.measure import interference
from lamina.measure.interference import Meter, Reading, cpu_causes, read, wait_idle
from lamina.record.timing import Timing

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
START = Reading(at_s=0.0, cores=2, own_s=1.0, busy_s=5.0, stolen_s=0.0, throttled_s=0.0, load=0.5)
QUIET = replace(START, at_s=1.0, own_s=3.0, busy_s=7.1)
STEADY = Timing("cpu", "-", 100.0, 99.0, 101.0, 30)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the readings have cores; workers of a test run have one."""
    monkeypatch.setattr(interference, "threads_of", lambda device: 2)


def test_a_quiet_machine_has_no_causes() -> None:
    assert cpu_causes(START, QUIET, threads=2) == ()


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (replace(QUIET, own_s=2.0), "other processes use 1.1 of 2 cores"),
        (replace(QUIET, stolen_s=0.5), "the hypervisor takes 25% of the CPU time"),
        (replace(QUIET, throttled_s=0.4), "the CPU quota throttles 40% of the time"),
        (replace(QUIET, busy_s=None, load=5.2), "load average 5.2 on 2 cores"),
    ],
)
def test_causes_are_named(after: Reading, cause: str) -> None:
    assert cpu_causes(START, after, threads=2) == (cause,)


def test_cores_that_are_left_over_disturb_nobody() -> None:
    many = replace(START, cores=16), replace(QUIET, cores=16, busy_s=13.0)
    assert cpu_causes(*many, threads=2) == () and len(cpu_causes(*many, threads=16)) == 1


def test_what_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "_text", lambda path: "")
    now = read()
    assert now.busy_s is None and now.stolen_s is None and now.throttled_s is None
    assert cpu_causes(now, replace(now, at_s=now.at_s + 1, load=None), 2) == ()


def test_cpu_times_are_those_of_the_usable_cores() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 50 1 1 0 0 7 0 0\ncpu1 300 0 0 1 1 0 0 0 0 0\nintr 5\n"
    busy, stolen = interference._busy_and_stolen(frozenset({0}), stat)
    assert busy == pytest.approx(1.5) and stolen == pytest.approx(0.07)
    assert interference._busy_and_stolen(frozenset({0}), "cpu0 1 2\n") == (None, None)


@pytest.mark.parametrize(
    ("path", "text", "seconds"),
    [
        ("/sys/fs/cgroup/mine/cpu.stat", "usage_usec 9\nthrottled_usec 2500000\n", 2.5),
        ("/sys/fs/cgroup/cpu/cpu.stat", "nr_throttled 3\nthrottled_time 1500000000\n", 1.5),
        ("/sys/fs/cgroup/cpu.stat", "usage_usec 9\n", None),
    ],
)
def test_throttling_is_read_from_either_kind_of_control_group(
    monkeypatch: pytest.MonkeyPatch, path: str, text: str, seconds: float | None
) -> None:
    files = {"/proc/self/cgroup": "0::/mine\n", path: text}
    monkeypatch.setattr(interference, "_text", lambda wanted: files.get(wanted, ""))
    assert interference._throttled() == seconds


def meter(device: torch.device, *readings: Reading, gpu: int | None = None) -> Meter:
    stream = iter(readings)
    return Meter(device, lambda: next(stream), lambda _: gpu)


BUSY = replace(QUIET, own_s=2.0)


def test_a_timing_is_noted_with_what_disturbed_it() -> None:
    spread = replace(STEADY, q1_us=80.0, q3_us=115.0)
    assert meter(CPU, START, QUIET).note(STEADY) == ""
    assert meter(CPU, START, BUSY).note(spread) == "other processes use 1.1 of 2 cores; quartiles 35% apart"
    assert meter(CPU, START, QUIET).note(replace(spread, n=2)) == ""


def test_kernel_times_are_not_disturbed_by_the_host() -> None:
    busy = replace(BUSY, busy_s=9.0)
    assert meter(GPU, START, busy, gpu=0).note(replace(STEADY, clock="cupti")) == ""
    assert "of 2 cores" in meter(GPU, START, busy, gpu=None).note(replace(STEADY, clock="wall"))
    assert meter(GPU, START, busy, gpu=37).note(replace(STEADY, clock="cupti")) == "other processes use 37 % of the GPU"


def test_readings_too_close_to_compare_share_their_causes() -> None:
    soon = replace(BUSY, at_s=1.01)
    found = meter(CPU, START, BUSY, soon)
    assert found.causes() == found.causes() != ()


def busy_for(readings: int) -> Iterator[Reading]:
    """Pairs of readings around an observation, busy so many times and quiet from then on."""
    for _ in range(readings):
        yield from (START, BUSY)
    while True:
        yield from (START, QUIET)


def test_waiting_ends_when_the_machine_is_quiet() -> None:
    said: list[str] = []
    stream = busy_for(12)
    assert wait_idle(CPU, 60, said.append, read=lambda: next(stream), sleep=lambda _: None)
    assert [text.split(":")[0] for text in said] == [
        "waiting for an idle machine, 1 of at most 60 s", "waiting for an idle machine, 11 of at most 60 s"
    ]  # fmt: skip


def test_waiting_has_a_limit() -> None:
    said: list[str] = []
    stream = busy_for(100)
    assert not wait_idle(CPU, 3, said.append, read=lambda: next(stream), sleep=lambda _: None)
    assert said[-1] == "the machine is still busy after 3 s (other processes use 1.1 of 2 cores): measuring anyway"


def test_a_busy_gpu_is_waited_for() -> None:
    said: list[str] = []
    stream, percents = busy_for(0), iter([80, 3])
    sources = {"read": lambda: next(stream), "gpu": lambda _: next(percents), "sleep": lambda _: None}
    assert wait_idle(GPU, 9, said.append, **sources)  # type: ignore[arg-type]
    assert "80 % of the GPU" in said[0]


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")
def test_another_process_is_seen_in_the_counters_of_the_kernel() -> None:
    before = read()
    loop = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    with subprocess.Popen(loop) as other:
        while other.poll() is None:
            time.sleep(0.01)
            during = read()  # before it is waited for, when its time would become that of a child
            assert before.busy_s is not None and during.busy_s is not None
            if during.busy_s - before.busy_s - (during.own_s - before.own_s) >= 0.3:
                return
    pytest.fail("the CPU time of another process was not seen")
