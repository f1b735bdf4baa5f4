"""Simulations by a plan: shapes of eliminated layers, densities of inputs, and what is not simulated."""

from lamina.pipeline.simulate import Planner
from lamina.pipeline.simulate.compaction import plan as compaction_plan
from lamina.pipeline.simulate.planned import by_plan
from lamina.spec.plan import Plan, PlannedLayer


def plan(**layers: tuple[str, float | None]) -> Plan:
    listed = tuple(
        PlannedLayer(name=name.replace("_", "."), type="Conv2d", method=method, density=density)
        for name, (method, density) in layers.items()
    )
    return Plan(network="lenet5", goal="infer", batch=1, layers=listed)


def test_an_eliminated_layer_sums_over_the_inputs_that_are_kept() -> None:
    jobs = Planner().jobs({"network": "lenet5", "batch": 1})
    before = {job.layer: job.gemm.k for job in jobs}
    found, remarks = by_plan(
        jobs, plan(features_0=("dense", None), features_3=("eliminated[keep=0.25,impl=gather]", None))
    )
    assert {job.layer: job.gemm.k for job in found} == before | {"features.3": round(before["features.3"] / 4)}
    assert not remarks and len({job.key for job in (*jobs, *found)}) == len(jobs) + 1


def test_what_is_not_simulated_is_said() -> None:
    jobs = Planner().jobs({"network": "lenet5", "batch": 1})
    found, remarks = by_plan(jobs, plan(features_3=("circulant[block_size=4]", 0.5)))
    assert list(found) == list(jobs)
    assert remarks == [
        "features.0: the plan of lenet5 has no such layer",
        "features.3: circulant[block_size=4] is simulated as dense",
    ]


def test_an_engine_gets_the_density_of_the_inputs() -> None:
    jobs = [job for each in compaction_plan({"network": "lenet5", "batch": 1}).values() for job in each.values()]
    found, _ = by_plan(jobs, plan(features_0=("dense", 1.0), features_3=("eliminated[keep=0.5]", 0.3)))
    densities = {(job.layer, job.config["control"]): job.config["density"] for job in found}
    assert densities["features.3", "engine"] == 0.3 and densities["features.0", "engine"] == 1.0
    assert densities["features.3", "dense"] == 0.5  # reads everything
    assert [job.gemm for job in found] == [job.gemm for job in jobs]
