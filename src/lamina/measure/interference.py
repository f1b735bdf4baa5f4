"""What disturbs times on a shared machine: other processes on the cores or the GPU, stolen time, throttling, spread.

Everything is read without permissions from ``/proc``, the control group and NVML; what cannot be read is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lamina.measure import nvml
from lamina.record.timing import Timing

FREE_CORES = 0.9
"""Fraction of the cores that the timed threads need; with less of it free they wait for other processes."""
STOLEN = 0.02
"""Fraction of the cores' time taken by the hypervisor, or of the elapsed time lost to a CPU quota."""
GPU_PERCENT = 5
"""Utilization of the GPU by other processes, in percent."""
SPREAD = 0.1
"""Interquartile range over median of a timing; timings stop at 0.02 where the machine is quiet."""
MIN_SAMPLES = 5
"""Samples from which quartiles are judged."""
WINDOW_S = 0.1
"""Shortest time between two readings that are compared: the kernel counts CPU time in steps of 10 ms."""
HOST_CLOCKS = ("cpu", "wall", "events")
"""Clocks whose times grow if the host is slow."""


@dataclass(frozen=True)
class Reading:
    """CPU time up to a moment, in seconds, over the cores that this process may use; None where it cannot be read."""

    at_s: float
    cores: int
    own_s: float
    busy_s: float | None
    stolen_s: float | None
    throttled_s: float | None
    load: float | None


def read() -> Reading:
    """The CPU time that the kernel has counted so far."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    busy_s, stolen_s = _busy_and_stolen(frozenset(usable), _text("/proc/stat"))
    used = os.times()
    return Reading(
        at_s=time.perf_counter(),
        cores=len(usable),
        own_s=used.user + used.system + used.children_user + used.children_system,
        busy_s=busy_s,
        stolen_s=stolen_s,
        throttled_s=_throttled(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def cpu_causes(before: Reading, after: Reading, threads: int) -> tuple[str, ...]:
    """Why times between two readings are unreliable for work on so many threads; nothing on a quiet machine.

    Without ``/proc/stat``, the load average stands for the other processes; it follows with a minute's delay.
    """
    elapsed = after.at_s - before.at_s
    if elapsed <= 0:
        return ()
    cores, needed = after.cores, FREE_CORES * min(threads, after.cores)
    found = []
    if before.busy_s is not None and after.busy_s is not None:
        others = (after.busy_s - before.busy_s - (after.own_s - before.own_s)) / elapsed
        if cores - others < needed:
            found.append(f"other processes use {min(others, cores):.1f} of {cores} cores")
    elif after.load is not None and after.load > cores + (1 - FREE_CORES) * threads:
        found.append(f"load average {after.load:.1f} on {cores} cores")
    if before.stolen_s is not None and after.stolen_s is not None:
        stolen = (after.stolen_s - before.stolen_s) / elapsed / cores
        if stolen > STOLEN:
            found.append(f"the hypervisor takes {stolen:.0%} of the CPU time")
    if before.throttled_s is not None and after.throttled_s is not None:
        throttled = (after.throttled_s - before.throttled_s) / elapsed
        if throttled > STOLEN:
            found.append(f"the CPU quota throttles {min(throttled, 1.0):.0%} of the time")
    return tuple(found)


def threads_of(device: torch.device) -> int:
    """Threads that work on a device's measurements: PyTorch's on the CPU, the launching one for a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


class Meter:
    """Watches the machine while something is timed.

    Each call of :meth:`note` or :meth:`causes` looks at the time since the call before, at least ``WINDOW_S``.
    """

    def __init__(
        self,
        device: torch.device,
        read: Callable[[], Reading] = read,
        gpu: Callable[[torch.device], int | None] = nvml.others_percent,
    ) -> None:
        self._device, self._read, self._gpu = device, read, gpu
        self._last = read()
        self._causes: tuple[str, ...] = ()

    def causes(self, host: bool = True) -> tuple[str, ...]:
        """What disturbs measurements now; without ``host``, on the GPU only."""
        now = self._read()
        if now.at_s - self._last.at_s >= WINDOW_S:
            self._causes = cpu_causes(self._last, now, threads_of(self._device))
            self._last = now
        percent = self._gpu(self._device) if self._device.type == "cuda" else None
        others = (f"other processes use {percent} % of the GPU",) if percent and percent > GPU_PERCENT else ()
        return (*(self._causes if host else ()), *others)

    def note(self, timing: Timing) -> str:
        """Why a timing that was just taken is unreliable; empty if it is not."""
        found = [*self.causes(timing.clock in HOST_CLOCKS)]
        spread = (timing.q3_us - timing.q1_us) / timing.median_us if timing.median_us > 0 else 0.0
        if timing.n >= MIN_SAMPLES and spread > SPREAD:
            found.append(f"quartiles {spread:.0%} apart")
        return "; ".join(found)


def wait_idle(
    device: torch.device,
    limit_s: float,
    say: Callable[[str], object],
    *,
    pause_s: float = 1.0,
    read: Callable[[], Reading] = read,
    gpu: Callable[[torch.device], int | None] = nvml.busy_percent,
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Wait until nothing else uses the cores and the GPU, at most `limit_s` seconds; whether it came to that.

    Args:
        device: what will be measured on.
        limit_s: when to go on although the machine is busy.
        say: is called with what is waited for, every ten seconds, and with the end of waiting.
        pause_s: length of one observation.
        read: source of CPU times.
        gpu: utilization of the GPU in percent, before this process uses it; None where unknown.
        sleep: lets time pass.
    """
    waited, announced = 0.0, -10.0
    while True:
        before = read()
        sleep(pause_s)
        waited += pause_s
        found = [*cpu_causes(before, read(), threads_of(device))]
        percent = gpu(device) if device.type == "cuda" else None
        if percent and percent > GPU_PERCENT:
            found.append(f"other processes use {percent} % of the GPU")
        if not found:
            return True
        causes = "; ".join(found)
        if waited >= limit_s:
            say(f"the machine is still busy after {waited:.0f} s ({causes}): measuring anyway")
            return False
        if waited - announced >= 10:
            announced = waited
            say(f"waiting for an idle machine, {waited:.0f} of at most {limit_s:g} s: {causes}")


def _busy_and_stolen(usable: frozenset[int], stat: str) -> tuple[float | None, float | None]:
    """Seconds of CPU time of all processes, and stolen ones, from ``/proc/stat``."""
    busy = stolen = 0
    known = False
    for line in stat.splitlines():
        name, *counts = line.split()
        if not name.startswith("cpu") or not name[3:].isdecimal() or int(name[3:]) not in usable or len(counts) < 8:
            continue
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, counts[:8])
        known = True
        busy += user + nice + system + irq + softirq
        stolen += steal
    ticks = os.sysconf("SC_CLK_TCK") if known else 1
    return (busy / ticks, stolen / ticks) if known else (None, None)


def _throttled() -> float | None:
    """Seconds for which the control group of this process was stopped for its CPU quota."""
    paths = ["/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"]
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            paths.insert(0, f"/sys/fs/cgroup{'/cpu' if controllers else ''}{path}/cpu.stat")
    for path in paths:
        counts = dict(line.split()[:2] for line in _text(path).splitlines() if len(line.split()) >= 2)
        for name, unit in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            if counts.get(name, "").isdecimal():
                return int(counts[name]) * unit
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
