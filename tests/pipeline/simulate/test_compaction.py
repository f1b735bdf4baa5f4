"""simulate compaction-engine: layers beside dense and their bounds, and what is not simulated twice."""

from collections.abc import Sequence
from math import prod

import pytest

from lamina.errors import SpecError
from lamina.pipeline.simulate import Simulated, simulate
from lamina.pipeline.simulate.compaction import Gains, gains, plan
from lamina.simulate.compaction_engine.attribution import NEEDED
from lamina.simulate.compaction_engine.unit import Control
from lamina.simulate.engines import Here
from lamina.simulate.jobs import Job
from lamina.store import Store

LENET = {"network": "lenet5", "batch": 1, "device.cu.count": 2, "density": 0.4}


def run(store: Store, controls: Sequence[Control] = (), **settings: str | int | float) -> Gains:
    def jobs(planned: Sequence[Job]) -> Simulated:
        return simulate(planned, store, Here(), target="lenet5", config={})

    return gains(plan({**LENET, **settings}, (), controls), jobs)


def test_each_layer_has_the_engine_dense_and_what_is_asked() -> None:
    planned = plan(LENET, ["features.3"], ["prefetch"])
    assert {layer: [*jobs] for layer, jobs in planned.items()} == {"features.3": ["engine", "dense", "prefetch"]}
    jobs = planned["features.3"]
    assert jobs["engine"].config["density"] == 0.4 and jobs["dense"].config["density"] == 0.5
    with pytest.raises(SpecError, match="key 'sib' is unknown"):
        plan({**LENET, "sib": 1})


def test_speedups_are_dense_over_engine_and_of_sums(store: Store) -> None:
    done = run(store)
    rows = [layer.to_dict() for layer in done.layers]
    assert [row["layer"] for row in rows] == ["features.0", "features.3"]
    for row in rows:
        assert row["speedup"] == row["dense_cycles"] / row["engine_cycles"]  # type: ignore[operator]
        assert row["ideal_mac_skip"] == 1 / row["density"]  # type: ignore[operator]
        bound = row["ideal_roofline"] / row["dense_fraction"]  # type: ignore[operator]
        assert row["speedup"] < row["speedup_bound"] == pytest.approx(bound)  # type: ignore[operator]
        assert row["reason"] == "" and row["engine_sib_hit_rate"] is not None and "dense_sib_hit_rate" not in row
    totals = [sum(row[key] for row in rows) for key in ("dense_cycles", "engine_cycles")]  # type: ignore[misc]
    assert done.speedup() == totals[0] / totals[1]
    bounds = [row["speedup_bound"] for row in rows]
    assert min(bounds) < (done.speedup_bound or 0) < max(bounds)  # type: ignore[type-var]


def test_the_chain_takes_the_speedup_apart(store: Store) -> None:
    done = run(store, NEEDED)
    for layer in done.layers:
        assert prod(gain.factor for gain in layer.gains) == pytest.approx(layer.speedup())
        assert layer.to_dict()["skipped_multiplications"] == layer.gains[-1].factor
    assert run(store).layers[0].gains == ()


def test_dense_is_not_simulated_again_for_another_density(store: Store) -> None:
    first = run(store)
    other = run(store, density=0.2)
    assert (first.simulated.found, other.simulated.found) == (0, 2)
    speedups = first.speedup(), other.speedup()
    assert speedups[0] and speedups[1] and speedups[1] > speedups[0]


def test_a_layer_without_result_says_why_and_the_others_go_on(store: Store) -> None:
    done = run(store, **{"device.dram.bytes": 300_000})
    small, large = sorted(done.layers, key=lambda layer: bool(layer.reason))
    assert small.speedup() and small.bounds
    assert large.speedup() is None and large.bounds is None and "engine: " in large.reason
    assert large.to_dict()["speedup"] is None and done.speedup() is None
