"""Runs a program under Nsight Compute and reads the counters of its kernels."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lamina.errors import LaminaError, MissingError
from lamina.measure.counters.parse import Profiled, parse

Caches = Literal["none", "all"]
"""Caches flushed before each replay: ``none``, so that L2 is as warm as in the program, or ``all``."""

_INSTALLED = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda-*/bin/ncu")
_PARAMETERS = Path("/proc/driver/nvidia/params")
_TAIL = 15  # last lines of output that an error quotes
_PERMISSION = (
    "no permission to read hardware counters: run as administrator, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (in a container also --cap-add=SYS_ADMIN); kernels are timed without it"
)
_CANNOT = re.compile(r"LibraryNotLoaded|not supported|unsupported|not compatible|InterfaceNotSupported", re.IGNORECASE)
_BUSY = re.compile(r"Driver resource was unavailable|concurrently collecting", re.IGNORECASE)
_CHILD_FAILED = re.compile(r"==ERROR== The application returned an error code \((-?\w+)\)")


def find() -> str | None:
    """The path of ncu; ``None`` if it is not installed."""
    if found := shutil.which("ncu"):
        return found
    for pattern in _INSTALLED:
        for path in sorted(Path("/").glob(pattern[1:]), reverse=True):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def refusal(parameters: Path = _PARAMETERS) -> str | None:
    """Why counters cannot be read on this machine; ``None`` if no reason is known (only a run is conclusive)."""
    if find() is None:
        return "Nsight Compute (ncu) is not installed"
    if os.geteuid() != 0:
        with suppress(OSError):
            if re.search(r"^RmProfilingAdminOnly:\s*1", parameters.read_text(), re.MULTILINE):
                return _PERMISSION
    return None


def command(ncu: str, child: Sequence[str], metrics: Sequence[str], log: Path, caches: Caches = "none") -> list[str]:
    """The command line that profiles `child` between cudaProfilerStart and cudaProfilerStop."""
    return [
        ncu,
        *("--csv", "--page", "raw", "--print-units", "base"),
        *("--nvtx", "--profile-from-start", "off", "--target-processes", "application-only"),
        *("--clock-control", "none", "--cache-control", caches),
        *("--metrics", ",".join(metrics), "--log-file", str(log)),
        *child,
    ]


@dataclass(frozen=True)
class Session:
    """The result of a program under ncu."""

    profiled: tuple[Profiled, ...]
    command: tuple[str, ...]
    caches: Caches

    @property
    def passes(self) -> int | None:
        """The largest number of replay passes of a kernel."""
        return max((one.passes for one in self.profiled if one.passes is not None), default=None)


def profile(
    child: Sequence[str],
    metrics: Sequence[str],
    *,
    timeout_s: float,
    caches: Caches = "none",
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    ncu: str | None = None,
) -> Session:
    """Run a program under ncu and read its counters.

    Args:
        child: the program and its arguments. It marks what to profile with cudaProfilerStart and
            cudaProfilerStop, and ranges with NVTX.
        metrics: names of metrics. Metrics that the GPU does not have come back without a value.
        timeout_s: limit for the whole run, in seconds.
        caches: what ncu flushes before each replay.
        on_line: called with each line that the child prints. ncu itself prints nothing until the end, so progress must
            come from the child.
        environment: environment of the child; that of this process by default.
        folder: working directory of the child.
        ncu: path of the tool; found automatically if not given.

    Errors:
        MissingError: no ncu, no permission, or no way to read counters on this machine.
        LaminaError: the child failed, took too long, or launched no kernel; or ncu failed.
    """
    tool = ncu or find()
    if tool is None:
        raise MissingError("expected Nsight Compute (ncu) to read hardware counters, got none: install it")
    with tempfile.TemporaryDirectory(prefix="lamina-ncu-") as scratch:
        log = Path(scratch) / "log"
        line = command(tool, child, metrics, log, caches)
        code, output = _run(line, timeout_s, on_line, environment, folder)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if fault := failure(code, text, output):
        raise fault
    return Session(parse(text, metrics), tuple(line), caches)


def failure(code: int, log: str, output: Sequence[str]) -> LaminaError | None:
    """The error, from ncu's exit code and log and the last lines of output; ``None`` if there is none."""
    own = [line for line in (*log.splitlines(), *output) if line.startswith(("==ERROR==", "==WARNING=="))]
    complaint = "\n".join(own)
    errors = "; ".join(line.removeprefix("==ERROR==").strip() for line in own if line.startswith("==ERROR=="))
    if "ERR_NVGPUCTRPERM" in complaint:
        return MissingError(_PERMISSION)
    if _BUSY.search(errors):
        return MissingError(f"another tool is using the hardware counters: {errors}")
    if _CANNOT.search(errors):
        return MissingError(f"ncu does not support counters on this machine: {errors}")
    if found := _CHILD_FAILED.search(complaint):
        return LaminaError(f"the profiled program failed with code {found[1]}:\n" + "\n".join(output))
    if code != 0 or errors:
        return LaminaError(f"ncu failed with code {code}: {errors or ' / '.join(output) or 'no output'}")
    if "No kernels were profiled" in complaint:
        return LaminaError("expected kernels between cudaProfilerStart and cudaProfilerStop, got none")
    return None


def _run(
    line: Sequence[str],
    timeout_s: float,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] | None,
    folder: Path | None,
) -> tuple[int, list[str]]:
    """Exit code and last lines of a process; the process and its children are killed when this function returns."""
    try:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise MissingError(f"expected Nsight Compute at {line[0]}, got: {error}") from error
    timed_out = threading.Event()

    def time_out() -> None:
        timed_out.set()
        _end(process)

    timer = threading.Timer(timeout_s, time_out)
    timer.start()
    last: deque[str] = deque(maxlen=_TAIL)
    try:
        for text in process.stdout or ():
            last.append(text.rstrip("\n"))
            on_line(last[-1])
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
        process.wait()
        if process.stdout:
            process.stdout.close()
    if timed_out.is_set():
        raise LaminaError(
            f"collecting counters took longer than {timeout_s:g} s; request fewer metrics or a smaller batch"
        )
    return code, list(last)


def _end(process: subprocess.Popen[str]) -> None:
    # The program is a child of ncu, in ncu's process group.
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
