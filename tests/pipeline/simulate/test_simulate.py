"""simulate: settings become jobs, and what the store has is not simulated again."""

import dataclasses
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from lamina.errors import SpecError, UsageError
from lamina.pipeline.simulate import Finished, Planner, Simulated, simulate
from lamina.simulate.engines import Here, Results
from lamina.simulate.hierarchy import preset
from lamina.simulate.jobs import Job
from lamina.spec import Phase
from lamina.store import Store

LENET = {"network": "lenet5", "batch": 1, "device.cu.count": 2}


class Counting:
    """Runs jobs here and remembers which; ``after`` so many it is interrupted."""

    def __init__(self, after: int | None = None):
        self.ran: list[Job] = []
        self.after = after

    def submit(self, jobs: Sequence[Job]) -> Results:
        for result in Here().submit(jobs):
            if len(self.ran) == self.after:
                raise KeyboardInterrupt
            self.ran.append(result.job)
            yield result


def run(store: Store, engine: Counting, jobs: Sequence[Job] | None = None, **how: bool) -> Simulated:
    jobs = Planner().jobs(LENET) if jobs is None else jobs
    return simulate(jobs, store, engine, target="lenet5", config=dict(LENET), **how)


def test_a_network_is_its_convolutions() -> None:
    jobs = Planner().jobs(LENET | {"kernel": "shipped", "sampling": True})
    assert [job.layer for job in jobs] == ["features.0", "features.3"]
    assert [(job.gemm.m, job.gemm.n, job.gemm.k) for job in jobs] == [(6, 784, 25), (16, 100, 150)]
    assert all(job.device == preset("mi6").changed({"cu.count": 2}) for job in jobs)
    assert jobs[0].options.model_dump() == {"kernel": "shipped", "sampling": True, "sets": 12, "impl": "core"}


@pytest.mark.parametrize(("pattern", "count"), [("features.0", 1), ("features.*", 2), ("*.3", 1)])
def test_layers_are_chosen_by_name_or_pattern(pattern: str, count: int) -> None:
    assert len(Planner().jobs(LENET | {"layer": pattern})) == count


def test_networks_of_files_have_their_input_size(tmp_path: Path) -> None:
    (tmp_path / "simulated_net.py").write_text("from torch import nn\nnet = lambda: nn.Conv2d(3, 8, 3, padding=1)\n")
    named = {"network": f"{tmp_path}/simulated_net.py:net", "batch": 2}
    jobs = [Planner().jobs(named | {"input_size": size})[0] for size in ("3x8x8", "3x4x4")]
    assert [(job.gemm.m, job.gemm.n, job.gemm.k) for job in jobs] == [(8, 2 * 64, 27), (8, 2 * 16, 27)]
    with pytest.raises(UsageError, match="its input shape is unknown; set it, such as --input-size 3x224x224"):
        Planner().jobs(named)


def test_a_phase_is_a_product_of_its_own() -> None:
    forward, *others = (Planner().jobs(LENET | {"phase": phase.value})[1] for phase in Phase)
    assert [(job.gemm.m, job.gemm.n, job.gemm.k) for job in others] == [(6, 196, 400), (16, 150, 100)]
    assert [job.config["phase"] for job in others] == ["backward_data", "backward_weight"]
    assert "phase" not in forward.config and forward.key == Planner().jobs(LENET)[1].key
    with pytest.raises(SpecError, match="phase = 'backwards': expected one of forward, backward_data"):
        Planner().jobs(LENET | {"phase": "backwards"})


def test_a_device_file_is_a_device(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(files("lamina.simulate").joinpath("devices/mi6.toml").read_text().replace('"mi6"', '"mine"', 1))
    (job, _) = Planner().jobs({"network": "lenet5", "device.preset": str(path)})
    assert job.device.name == "mine" and job.batch == 16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"network": "lenet6"}, UsageError, "did you mean 'lenet5'"),
        ({"network": "gpt"}, UsageError, "expected a network with convolutions"),
        ({"network": 5}, SpecError, "network = 5: expected a string"),
        (
            {"layer": "features.1"},
            SpecError,
            "layer = 'features.1' is none of the convolutions: did you mean 'features",
        ),
        ({"batch": 0}, SpecError, "batch = 0: expected an integer"),
        ({"batch": 1.5}, SpecError, "batch = 1.5"),
        ({"batch": True}, SpecError, "batch = True"),
        ({"unit": "dens"}, UsageError, "unit 'dens' is unknown"),
        ({"device.preset": "mi7"}, UsageError, "device 'mi7' is unknown"),
        ({"input_size": "3x"}, SpecError, "input_size = '3x': expected sizes such as 3x224x224"),
        ({"device.l2.byte": 1}, SpecError, "device: key 'l2.byte' is unknown: did you mean 'l2.bytes'"),
        ({"device.l2.bytes": 3}, SpecError, "device: l2.bytes = 3: expected"),
        ({"device.l1.ways": 0}, SpecError, "device: l1.ways = 0: expected at least 1"),
        ({"kernal": "shipped"}, SpecError, "key 'kernal' is unknown: did you mean 'kernel'"),
        ({"kernel": "broken"}, SpecError, "kernel = 'broken'"),
        ({"sets": 1}, SpecError, "sets = 1: expected at least 4"),
        ({"sampling": "yes"}, SpecError, "sampling = 'yes': expected true or false"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, object], error: type[UsageError], message: str) -> None:
    with pytest.raises(error, match=message):
        Planner().jobs(LENET | change)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="network is missing"):
        Planner().jobs({})


def test_results_are_stored_and_told(store: Store) -> None:
    told: list[Finished] = []
    jobs = Planner().jobs(LENET)
    done = simulate(jobs, store, Here(), target="lenet5", config={}, command="lamina simulate", watch=told.append)
    assert [each.done for each in told] == [0, 1, 2] and {each.total for each in told} == {2}
    assert store.simulations(done.run.id) == tuple(each.run for each in done.results)
    assert (done.run.status, done.run.verb, done.run.command, done.found) == ("done", "simulate", "lamina simulate", 0)


def test_what_the_store_has_is_not_simulated_again(store: Store) -> None:
    first, second, third = Counting(), Counting(), Counting()
    done = run(store, first)
    again = run(store, second)
    assert (len(first.ran), len(second.ran), again.found) == (2, 0, 2)
    assert again.run.id != done.run.id
    assert [each.run for each in again.results] == [each.run for each in done.results]
    assert store.simulations(again.run.id) == store.simulations(done.run.id)
    assert run(store, third, fresh=True).found == 0 and len(third.ran) == 2


def test_another_commit_s_results_do_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from lamina import measure

    run(store, Counting())
    other = dataclasses.replace(measure.environment("cpu"), commit="0123456789")
    monkeypatch.setattr(measure, "environment", lambda device: other)
    engine = Counting()
    run(store, engine)
    assert len(engine.ran) == 2


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(store, Counting(after=1))
    (interrupted,) = store.runs(verb="simulate")
    assert interrupted.status == "interrupted" and len(store.simulations(interrupted.id)) == 1
    engine = Counting()
    done = run(store, engine, resume=True)
    assert done.run.id == interrupted.id and done.run.status == "done"
    assert [job.layer for job in engine.ran] == ["features.3"] and done.found == 1


def test_a_layer_without_a_result_lets_the_others_go_on_and_is_tried_again(store: Store) -> None:
    small = Planner().jobs(LENET | {"device.dram.bytes": 200_000})
    done = run(store, Counting(), small)
    assert [each.run is None for each in done.results] == [True, False]
    assert done.failed == done.results[:1] and "features.0: " in done.run.remarks[0]
    engine = Counting()
    assert run(store, engine, small).found == 1 and len(engine.ran) == 1


def test_equal_jobs_are_simulated_once(store: Store) -> None:
    jobs = Planner().jobs(LENET)
    engine = Counting()
    done = run(store, engine, [*jobs, *jobs])
    assert len(engine.ran) == 2 and [each.job for each in done.results] == [*jobs, *jobs]
