"""simulate training: shares from a benchmark, sparsity from a monitor, speedups from the simulator."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lamina.errors import UsageError
from lamina.pipeline.simulate import Simulated, simulate
from lamina.pipeline.simulate.compaction import gains, plan
from lamina.pipeline.simulate.training_gain import TrainingGain, training_gain
from lamina.record import LayerRun, Sparsity, Timing
from lamina.simulate.engines import Here
from lamina.simulate.jobs import Job
from lamina.store import Store

LENET = {"network": "lenet5", "batch": 1, "device.cu.count": 2}


def row(layer: str, phase: str, us: float, precision: str = "fp32") -> LayerRun:
    return LayerRun(
        layer, "convolution", 0, phase, "dense", precision, "nchw", 8, "gpu", ((8, 3, 4, 4),), (8, 2, 4, 4), 1, 1, 1,
        "ok", timing=Timing("graph", "-", us, us, us, 3),
    )  # fmt: skip


ROWS = [
    row("features.0", "forward", 10), row("features.0", "backward_weight", 10), row("features.3", "forward", 30),
    row("features.3", "backward_data", 10), row("features.3", "backward_weight", 20), row("flatten", "forward", 20),
]  # fmt: skip
SEEN = [Sparsity("features.1", "output", step, density) for step, density in enumerate((0.9, 0.3, 0.3, 0.3))]


def run(store: Store, rows: Sequence[LayerRun] = ROWS, seen: Sequence[Sparsity] = SEEN, **more: Any) -> TrainingGain:
    def jobs(planned: Sequence[Job]) -> Simulated:
        return simulate(planned, store, Here(), target="lenet5", config={})

    return training_gain(LENET, rows, seen, jobs, **{"bins": 2, **more})


def simulated(store: Store, density: float) -> float:
    found = gains(
        plan(LENET | {"density": density}, ["features.3"]),
        lambda jobs: simulate(jobs, store, Here(), target="lenet5", config={}),
    )
    speedup = found.layers[0].speedup()
    assert speedup is not None
    return speedup


def test_the_parts_are_put_together_by_the_equation(store: Store) -> None:
    done = run(store)
    assert done.observed == {"features.3": "features.1"}  # through the pooling between them
    assert done.histograms == {"features.0": [1.0], "features.3": (0.25, 0.75)}
    s = done.speedups["features.3"]
    assert s == [simulated(store, 0.75), simulated(store, 0.25)] and s[1] > s[0]
    assert done.gain.share == pytest.approx(0.8)
    assert done.gain.speedup == pytest.approx(1 / (0.2 + 0.2 + 0.6 * (0.25 / s[0] + 0.75 / s[1])))


def test_bins_that_were_never_seen_are_not_simulated(store: Store) -> None:
    done = run(store, bins=4)
    assert done.histograms["features.3"] == (0.25, 0.0, 0.75, 0.0)
    densities = [
        each.config["density"] for each in store.simulations(done.run.id) if each.config["control"] == "engine"
    ]
    assert densities == [0.875, 0.375]


def test_only_the_phases_asked_for_are_faster(store: Store) -> None:
    done = run(store, phases=["forward"])
    s = done.speedups["features.3"]
    assert done.gain.share == pytest.approx(0.4)
    assert done.gain.speedup == pytest.approx(1 / (0.7 + 0.3 * (0.25 / s[0] + 0.75 / s[1])))


def test_rows_of_several_points_are_told_apart(store: Store) -> None:
    both = [*ROWS, *(replace(each, precision="bf16") for each in ROWS)]
    with pytest.raises(UsageError, match="expected rows of one implementation, precision"):
        run(store, both)
    assert run(store, both, point={"precision": "fp32", "clock": "graph"}).gain == run(store).gain
    with pytest.raises(UsageError, match="expected a time of features.0"):
        run(store, point={"precision": "tf32"})


def test_observations_must_be_of_what_convolutions_read(store: Store) -> None:
    with pytest.raises(UsageError, match="no observations of"):
        run(store, seen=[])
    with pytest.raises(UsageError, match="expected observations of what its convolutions read"):
        run(store, seen=[replace(SEEN[0], layer="features.4")])
    with pytest.raises(UsageError, match="at least 1"):
        run(store, bins=0)
