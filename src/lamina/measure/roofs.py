"""Measured peaks of a machine (memory bandwidth, GEMM rate, launch overhead), cached in a file."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from lamina.errors import UsageError
from lamina.measure import nvml
from lamina.measure.clocks import Clock, clock
from lamina.measure.device import name_of, resolve
from lamina.measure.repeat import Repeat
from lamina.record.roofs import Roofs

_log = logging.getLogger(__name__)
_REPEAT = Repeat(min_samples=5, max_samples=50, min_time_s=0.02, max_time_s=0.15, warmup=1)
_GEMM_US = 4000.0  # long enough to hide launch latency and tail
_MIN_SIZE = 512
_MAX_SIZE = {"cpu": 2048, "cuda": 8192}
_MIB = 1 << 20
_LAUNCHES = 200  # well below the size of a stream's launch queue

# precision -> dtype of the operands, and the fp32 matmul precision
_PRECISIONS = {
    "fp64": (torch.float64, "ieee"),
    "fp32": (torch.float32, "ieee"),
    "tf32": (torch.float32, "tf32"),
    "bf16": (torch.bfloat16, "ieee"),
    "fp16": (torch.float16, "ieee"),
}
_ON_CPU = ("fp64", "fp32", "bf16")


def roofs(device: torch.device | str, cache_dir: Path, refresh: bool = False) -> Roofs:
    """The measured peaks of a device, read from `cache_dir` or measured and written there.

    A file is valid for one device, torch version and number of threads. If it cannot be read, the peaks are measured
    again and a warning is logged.
    """
    device = resolve(device)
    path = cache_dir / _file_name(device)
    if path.is_file() and not refresh:
        try:
            found = Roofs.from_json(path.read_text(encoding="utf-8"))
            _check_provenance(found, device)
            return found
        except (UsageError, UnicodeDecodeError) as error:
            _log.warning("measuring the peaks again: %s: %s", path, error)
    cache_dir.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is found before measuring
    measured = measure_roofs(device)
    # Written to a temporary file and renamed, so that a reader never sees a partial file.
    temporary = path.with_suffix(".part")
    temporary.write_text(measured.to_json(), encoding="utf-8")
    temporary.replace(path)
    return measured


def measure_roofs(device: torch.device | str) -> Roofs:
    """Copy and read bandwidth, GEMM rate per precision and launch overhead.

    Operands are random; bandwidths use buffers larger than the last-level cache. Values are medians and take a few
    seconds. Other load on the machine lowers them: measure on an idle one.
    """
    device = resolve(device)
    ticker = clock("events" if device.type == "cuda" else "cpu", device)
    copy_gbs, read_gbs = _bandwidths(ticker, device)
    launch_us, enqueue_us = _launch_us(ticker, device)
    return Roofs(
        device=name_of(device),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        threads=torch.get_num_threads(),
        versions=_versions(device),
        copy_gbs=copy_gbs,
        read_gbs=read_gbs,
        gemm_gflops={
            precision: _gemm_gflops(ticker, device, precision)
            for precision in (_PRECISIONS if device.type == "cuda" else _ON_CPU)
        },
        launch_us=launch_us,
        enqueue_us=enqueue_us,
    )


@contextmanager
def fp32_products(mode: str) -> Iterator[None]:
    """Compute float32 matrix products as 'ieee' or 'tf32' inside the block; restores the previous setting."""
    switches = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = mode
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def _median_us(ticker: Clock, fn: Callable[[], object]) -> float:
    return ticker.time(fn, repeat=_REPEAT).median_us


def _bandwidths(ticker: Clock, device: torch.device) -> tuple[float, float]:
    """1e9 bytes/s of a copy, read plus written, and of a sum."""
    source = torch.rand(_buffer_bytes(device) // 4, device=device)
    target = torch.empty_like(source)
    copy_us = _median_us(ticker, lambda: target.copy_(source))
    return 2 * source.nbytes / copy_us / 1e3, source.nbytes / _median_us(ticker, source.sum) / 1e3


def _gemm_gflops(ticker: Clock, device: torch.device, precision: str) -> float:
    """GFLOP/s of the smallest square product, by powers of two, that takes 4 ms or has the maximum size."""
    dtype, mode = _PRECISIONS[precision]
    size = _MIN_SIZE
    with fp32_products(mode):
        while True:
            a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            us = _median_us(ticker, partial(torch.mm, a, b, out=torch.empty_like(a)))
            if us >= _GEMM_US or size == _MAX_SIZE[device.type]:
                return 2 * size**3 / us / 1e3
            size *= 2


def launch_overhead_us(device: torch.device | str) -> float:
    """Microseconds of host time for a tiny operator in eager mode: the median of runs of 200, on a device that is idle.

    Another host, or other jobs on it, may take several times as long.
    """
    device = resolve(device)
    tiny = torch.ones(1, device=device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    host_s = []
    for _ in range(_REPEAT.min_samples):
        wait()
        start = time.perf_counter()
        _add(tiny)
        host_s.append(time.perf_counter() - start)
    wait()
    return statistics.median(host_s) / _LAUNCHES * 1e6


def _launch_us(ticker: Clock, device: torch.device) -> tuple[float, float]:
    """Microseconds per small operator: back to back on the device, and to enqueue it on the host."""
    tiny = torch.ones(1, device=device)
    if device.type == "cpu":
        alone = _median_us(ticker, lambda: tiny.add_(1))
        return alone, alone
    return _median_us(ticker, partial(_add, tiny)) / _LAUNCHES, launch_overhead_us(device)


def _add(tiny: torch.Tensor) -> None:
    for _ in range(_LAUNCHES):
        tiny.add_(1)


def _buffer_bytes(device: torch.device) -> int:
    """Far larger than the last-level cache, far smaller than the memory."""
    if device.type == "cuda":
        return min(2048 * _MIB, torch.cuda.get_device_properties(device).total_memory // 8)
    return max(128 * _MIB, 4 * _last_level_cache_bytes())


def _last_level_cache_bytes() -> int:
    """The size of the largest cache of CPU 0; 0 if the kernel does not report it."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().strip().removesuffix("K")) * 1024 for path in sizes), default=0)


def _versions(device: torch.device) -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    if device.type == "cuda":
        card = nvml.settings(device)
        found = {"cuda": torch.version.cuda, "driver": card.driver if card else None}
        versions |= {name: version for name, version in found.items() if version}
    return versions


def _file_name(device: torch.device) -> str:
    parts = ["roofs", name_of(device), f"torch-{torch.__version__}", f"{torch.get_num_threads()}-threads"]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-") + ".json"


def _check_provenance(found: Roofs, device: torch.device) -> None:
    expected = (name_of(device), str(torch.__version__), torch.get_num_threads())
    got = (found.device, found.versions.get("torch"), found.threads)
    if got != expected:
        raise UsageError(f"expected the peaks of {expected}, got those of {got}")
