"""Simulation jobs by a plan of ``lamina study``: what a method makes of a layer's shape, and what a layer reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lamina.simulate.jobs import Job
from lamina.spec import Method
from lamina.spec.plan import Plan, PlannedLayer


def by_plan(jobs: Iterable[Job], plan: Plan) -> tuple[list[Job], list[str]]:
    """The jobs with the shapes and densities of a plan, and what of the plan is not simulated.

    Dense products of eliminated layers sum over the inputs that are kept. Units whose options have a density get that
    of the layer's inputs; they compact what is read, so their shapes stay. Other methods are simulated as dense.
    """
    layers = {one.name: one for one in plan.layers}
    found, remarks = [], dict[str, None]()
    for job in jobs:
        layer = layers.get(job.layer)
        if layer is None:
            remarks[f"{job.layer}: the plan of {plan.network} has no such layer"] = None
            found.append(job)
            continue
        one, simulated = _shaped(job, layer)
        if not simulated and layer.method != "dense":
            remarks[f"{job.layer}: {layer.method} is simulated as dense"] = None
        found.append(_with_density(one, layer))
    return found, list(remarks)


def _shaped(job: Job, layer: PlannedLayer) -> tuple[Job, bool]:
    """The job of an eliminated layer; and whether the method decides what is simulated."""
    method = Method.parse(layer.method)
    keep = dict(method.options).get("keep")
    if job.unit != "dense" or method.name != "eliminated" or keep is None:
        return job, False
    kept = max(1, round(float(keep) * job.gemm.k))
    return replace(job, gemm=replace(job.gemm, k=kept)), True


def _with_density(job: Job, layer: PlannedLayer) -> Job:
    options = job.options.model_dump()
    if layer.density is None or "density" not in options or options.get("control") == "dense":  # that does not see it
        return job
    return replace(job, options=job.options.model_copy(update={"density": layer.density}))
