"""sweep: a grid becomes jobs and designs; what is killed goes on where it stood."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.pipeline.simulate.test_simulate import Counting
from tests.processes import children, ended, needs_proc

from lamina.errors import SpecError
from lamina.pipeline.simulate.sweep import plan, sweep
from lamina.record import SimRun
from lamina.simulate.engines import Here, Results
from lamina.simulate.grid import Grid, parse_grid, read_grid
from lamina.simulate.jobs import Job, Result
from lamina.store import Store

GRID = """
name = "caches"
[base]
network = "lenet5"
device.cu.count = 2
[axes]
batch = [1, 2]
device.l2.bytes = [1048576, 2097152]
device.dram.mode = ["ideal", "banked"]
"""


def test_designs_are_compared_with_the_first_values(store: Store) -> None:
    done = sweep(plan(parse_grid(GRID, "g")), store, Here())
    assert len(done.designs) == 8 and len(done.simulated.results) == 16
    first = [one for one in done.designs if one.settings == {"device.l2.bytes": 1048576, "device.dram.mode": "ideal"}]
    assert [(one.batch, one.speedup) for one in first] == [(1, 1.0), (2, 1.0)]
    slow = {one.settings["device.dram.mode"]: one.microseconds for one in done.designs[:2]}
    assert done.designs[1].speedup == pytest.approx(slow["ideal"] / slow["banked"])  # type: ignore[operator]
    assert {one.batch for one in done.front} == {1, 2} and all(one.front for one in done.front)
    assert done.simulated.run.target == "caches" and done.simulated.run.verb == "sweep"
    assert done.simulated.run.config["axes"]["batch"] == [1, 2]


def test_a_baseline_replaces_settings_of_each_design() -> None:
    planned = plan(parse_grid(GRID + "[baseline]\ndevice.l2.bytes = 4194304\n", "g"))
    for (workload, swept), jobs in planned.baselines.items():
        assert {job.batch for job in jobs} == {workload[1]}
        assert {job.device.l2.bytes for job in jobs} == {4194304}
        assert {job.device.dram.mode for job in jobs} == {dict(swept)["device.dram.mode"]}
    assert len(planned.all) == 16 + 2 * 2 * 2  # and the baseline's: two batches, two modes, two layers


def test_layers_on_an_axis_are_one_design() -> None:
    grid = Grid(
        "g", {"network": "lenet5", "batch": 1}, {"layer": ("features.0", "features.*"), "sampling": (False, True)}
    )
    planned = plan(grid)
    assert [dict(swept) for _, swept in planned.jobs] == [{"sampling": False}, {"sampling": True}]
    assert [len(jobs) for jobs in planned.jobs.values()] == [2, 2]


def test_every_fault_of_a_grid_is_named_once() -> None:
    text = """
    [base]
    network = "lenet5"
    kernal = "shipped"
    [axes]
    device.l2.bytes = [3, 1048576]
    device.dram.mode = ["ideal", "banked"]
    """
    with pytest.raises(SpecError) as caught:
        plan(parse_grid(text, "g"), "g.toml")
    assert str(caught.value) == "g.toml: key 'kernal' is unknown: did you mean 'kernel'?"
    with pytest.raises(SpecError) as caught:
        plan(parse_grid(text.replace('kernal = "shipped"', ""), "g"), "g.toml")
    assert len(caught.value.faults) == 1 and "device: l2.bytes = 3: expected" in str(caught.value)


def test_grids_share_what_they_have_in_common(store: Store) -> None:
    one, two = Counting(), Counting()
    sweep(plan(parse_grid(GRID, "g")), store, one)
    done = sweep(plan(parse_grid(GRID.replace("[1, 2]", "[2, 3]"), "g")), store, two)
    assert len(one.ran) == 16 and {job.batch for job in two.ran} == {3} and done.simulated.found == 8


def test_the_example_is_a_grid() -> None:
    planned = plan(read_grid(Path(__file__).parents[3] / "examples" / "sweep.toml"))
    assert len(planned.jobs) == 8 and len(planned.all) == 8 * 12


def test_the_engine_that_is_shipped_as_an_example_has_one_baseline() -> None:
    planned = plan(read_grid(Path(__file__).parents[3] / "examples" / "engine.toml"))
    assert len(planned.jobs) == 64 and len(planned.all) == 65


SLOW = """
[base]
network = "lenet5"
impl = "reference"
layer = "features.3"
device.cu.count = 2
[axes]
batch = [1, 2, 512, 513, 514, 515]
"""
"""Two quick layers, then some that the readable simulator takes longer for than any test."""
COMMAND = """
import signal
from lamina.cli import app
from lamina.cli.sweep import sweep
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
    app.command()(sweep)
    app()
"""


class Remembering:
    """Answers every job at once."""

    def __init__(self) -> None:
        self.ran: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> Results:
        for job in jobs:
            self.ran.append(job)
            yield Result(job, SimRun(job.layer, "k", job.device.name, job.config, 7, {}))


@needs_proc
@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, "running"), (signal.SIGINT, "interrupted")])
def test_a_killed_sweep_goes_on_where_it_stood(tmp_path: Path, store: Store, how: signal.Signals, status: str) -> None:
    (tmp_path / "grid.toml").write_text(SLOW)
    (tmp_path / "command.py").write_text(COMMAND)
    words = ["sweep", str(tmp_path / "grid.toml"), "--workers", "2", "--store", str(tmp_path / "lamina.db")]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "command.py"), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        while not (begun := store.runs(verb="sweep")) or len(store.simulations(begun[0].id)) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        workers = children(process.pid)
        process.send_signal(how)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if how == signal.SIGINT else -how), told
    assert workers and all(ended(worker) for worker in workers)
    (begun,) = store.runs(verb="sweep")
    assert begun.status == status and len(store.simulations(begun.id)) == 2

    engine = Remembering()
    done = sweep(plan(parse_grid(SLOW, "grid", "grid")), store, engine, resume=True)
    assert [job.batch for job in engine.ran] == [512, 513, 514, 515]
    assert done.simulated.run.id == begun.id and done.simulated.run.status == "done" and done.simulated.found == 2
