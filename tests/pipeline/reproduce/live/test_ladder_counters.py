"""Counters added up, and the static size of kernels."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.accelerate.papers.circulant_ladder import rungs
from lamina.measure import counters
from lamina.measure.counters import Profiled, Session
from lamina.pipeline.reproduce.live import ladder_counters as counts

UNITS = dict.fromkeys(counts.METRICS, "")


def launch(place: str, name: str, *values: float | None) -> Profiled:
    metrics = {metric: (value, "") for metric, value in zip(counts.METRICS, values, strict=True)}
    return Profiled(place, name, (1, 1, 1), (32, 1, 1), metrics)


FFT = launch("lamina/fusion/forward", "void vector_fft<64u, float>(float2 *)", 1000, 300, 40, 20, 1.0, 8.0, 50.0)
FUSED = launch("lamina/fusion/forward", "fused(const float2 *, float2 *)", 3000, 500, 60, 10, 2.0, 4.0, 90.0)


def test_counts_add_up_and_rates_are_weighed_by_time() -> None:
    assert counts.totals([FFT, FUSED]) == {
        "launches": 2, "time_us": 4.0, "instructions": 800, "read_sectors": 100, "written_sectors": 30,
        "ipc": 1.75, "eligible_warps": 5.0, "occupancy_pct": 80.0,
    }  # fmt: skip


def test_a_counter_that_one_launch_lacks_has_no_total() -> None:
    found = counts.totals([FFT, launch("", "fused", 3000, None, 60, 10, None, 4.0, 90.0)])
    assert found["instructions"] is None
    assert found["ipc"] is None
    assert found["read_sectors"] == 100


def test_each_phase_of_each_rung_has_rows_of_all_kernels_and_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def profile(child: list[str], metrics: tuple[str, ...], **options: Any) -> Session:
        asked.update(child=child, metrics=metrics, **options)
        return Session((FFT, FUSED), tuple(child), "none")

    monkeypatch.setattr(counters, "profile", profile)
    rows = counts.counted("C", 32, {"fused": 40, "multiply": 7})
    ran: list[tuple[str, int]] = []
    monkeypatch.setattr(counts, "run_counted", lambda *args: ran.append(args))
    assert asked["child"][:2] == [sys.executable, "-c"]
    exec(asked["child"][2])
    assert ran == [("C", 32)]
    assert len(rows) == len(rungs.RUNGS) * 3 * 2
    every, own = (row for row in rows if row["rung"] == "fusion" and row["phase"] == "forward")
    assert (every["kernels"], every["launches"], every["instructions"]) == ("all", 2, 800)
    assert (own["kernels"], own["launches"], own["instructions"]) == ("own", 1, 500)
    assert (own["static_instructions"], own["static_to_dynamic"]) == (40, 0.08)
    assert next(row for row in rows if row["rung"] == "o1_sum")["launches"] == 0


needs_tools = pytest.mark.skipif(
    not (shutil.which("nvcc") and shutil.which("readelf")), reason="nvcc or readelf is not installed"
)


@needs_tools
def test_static_instructions_are_the_sizes_of_the_kernels_sections(tmp_path: Path) -> None:
    cubin = tmp_path / "kernels.cubin"
    subprocess.run(["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-o", cubin, rungs.SOURCE], check=True)
    found = counts.static_instructions(cubin.read_bytes())
    listed = subprocess.run(["readelf", "-SW", cubin], capture_output=True, text=True, check=True).stdout
    sizes = re.findall(r"\.text\.(\w+) +PROGBITS +\w+ +\w+ +(\w+)", listed)
    assert found == {name: int(size, 16) // 16 for name, size in sizes}
    assert set(found) == set(rungs.NAMES)
