"""Peak memory, against allocations whose size is known."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lamina.measure.memory import free_bytes, peak_memory

MIB = 1 << 20


def held(mebibytes: int, device: str = "cpu") -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device=device)


def test_the_peak_is_not_the_sum() -> None:
    with peak_memory("cpu") as peak:
        first = held(4)
        del first
        second, third = held(3), held(2)
        del second, third
    assert peak.bytes == 5 * MIB


def test_memory_allocated_before_does_not_count() -> None:
    before = held(8)
    with peak_memory("cpu") as peak:
        after = held(3)
        del before
        more = held(1)
    assert peak.bytes == after.nbytes + more.nbytes


def test_an_operator_needs_its_result() -> None:
    x = torch.ones(256, 1024)
    with peak_memory("cpu") as peak:
        y = x + x
    assert peak.bytes == y.nbytes


def test_an_error_inside_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), peak_memory("cpu") as peak:
        1 / 0
    assert peak.bytes is None


@pytest.mark.gpu
def test_the_peak_on_a_gpu() -> None:
    kept = held(64, "cuda")
    with peak_memory("cuda") as peak:
        first = held(40, "cuda")
        del first
        second = held(20, "cuda")
    assert peak.bytes == 40 * MIB
    assert kept.nbytes + second.nbytes == 84 * MIB


def test_a_profiler_session_prints_nothing_on_stderr() -> None:
    code = (
        "import torch\nfrom lamina.measure.memory import peak_memory\n"
        "with peak_memory('cpu') as peak: torch.ones(1000)\nprint(peak.bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("4000\n", "")


def test_free_memory_of_the_host(tmp_path: Path) -> None:
    (file := tmp_path / "meminfo").write_text("MemTotal:  24 kB\nMemFree: 1 kB\nMemAvailable:   12 kB\n")
    assert free_bytes("cpu", file) == 12 << 10
    assert free_bytes("cpu", tmp_path / "none") is None
    if (free := free_bytes("cpu")) is not None:
        assert free > 1 << 20


@pytest.mark.gpu
def test_free_memory_of_a_gpu_counts_what_the_allocator_caches() -> None:
    held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    before = free_bytes("cuda")
    del held
    after = free_bytes("cuda")
    assert before is not None and after is not None and after >= before + (1 << 28)
