"""Real Ray and Dask clusters on the loopback interface, whose workers are killed on the way."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.processes import needs_proc

from lamina.pipeline.simulate.sweep import plan, sweep
from lamina.pipeline.sweep.engines.limits import descendants
from lamina.record import SimRun
from lamina.simulate.engines import Here
from lamina.simulate.jobs import key_of
from lamina.spec.grid import parse_grid
from lamina.store import Store, open_store

pytestmark = needs_proc

GRID = """
[base]
network = "lenet5"
batch = 4
layer = "features.3"
impl = "reference"
device.cu.count = 2
[axes]
device.dram.latency = [100.0, 200.0, 300.0, 400.0]
device.l2.bytes = [524288, 1048576, 2097152, 4194304]
"""


def results(store: Store) -> dict[str, SimRun]:
    return {key_of(one.config): one for run in store.runs() for one in store.simulations(run.id)}


@pytest.fixture(scope="module")
def expected() -> dict[str, SimRun]:
    with open_store(":memory:") as store:
        sweep(plan(parse_grid(GRID, "g")), store, Here())
        return results(store)


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_sweep_survives_its_workers(engine: str, package: str, expected: dict[str, SimRun], tmp_path: Path) -> None:
    if subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "grid.toml").write_text(GRID)
    path = tmp_path / "lamina.db"
    words = ["sweep", str(tmp_path / "grid.toml"), "--engine", engine, "--workers", "2", "--store", str(path)]
    command = [sys.executable, "-m", "lamina", *words, "--format", "csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (path.exists() and stored(path)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        os.kill(worker_of(process.pid), signal.SIGKILL)
        out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert stored(path) == expected and len(out.splitlines()) == 1 + len(expected)


def stored(path: Path) -> dict[str, SimRun]:
    with open_store(path) as store:
        return results(store)


def worker_of(driver: int) -> int:
    """A process of the cluster that has a child process that calls functions."""
    while True:
        for pid in descendants(driver):
            for below in descendants(pid)[:1]:
                if "engines.child" in Path(f"/proc/{below}/cmdline").read_text():
                    return pid
        time.sleep(0.05)
