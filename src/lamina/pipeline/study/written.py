"""The plan of a study, and its folder: ``plan.toml`` with the weights beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from lamina import build
from lamina.accelerate.convert import standard_twin
from lamina.build import Target
from lamina.pipeline.apply import describe_type
from lamina.pipeline.apply import save as save_folder
from lamina.pipeline.apply.front import FRONT
from lamina.pipeline.deft import recipe_files
from lamina.pipeline.deft.recipe_files import digest
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.layers import Layers
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.subject import Subject
from lamina.record.study import Measured, Study, Trial
from lamina.spec import Method
from lamina.spec.plan import NAME, Alternative, Plan, PlannedLayer, Run, Step
from lamina.spec.plan_file import parse_plan, plan_text
from lamina.spec.whole_method import folds

DENSE = "dense"


def with_plan(
    found: Study,
    layers: Layers,
    choice: Choice,
    ran: Mapping[str, str],
    subject: Subject,
    environment: Mapping[str, str],
) -> Study:
    """The study with the text of its plan."""
    after = found.whole("plan")
    settings = after.settings
    plan = Plan(
        network=found.network,
        goal="train" if found.goal == "train" else "infer",
        batch=found.batch,
        max_accuracy_drop=found.max_accuracy_drop,
        metric=found.metric,
        run=Run.model_validate(
            {
                "precision": settings.precision,
                "layout": settings.layout,
                "mode": settings.mode,
                "method": settings.method,
            }
        ),
        before=_step(found.whole("before")),
        uniform=_step(found.uniform),
        after=_step(after),
        environment=dict(environment),
        weights=digest(subject.dense),
        layers=tuple(
            _planned(name, module, layers, choice, ran, found.trials) for name, module in _weighted(subject.dense)
        ),
        front=tuple(Alternative(time_us=p.time_us, accuracy=p.accuracy, methods=dict(p.methods)) for p in found.front),
    )
    return replace(found, plan=plan_text(plan))


def save(
    folder: Path,
    found: Study,
    model: nn.Module,
    subject: Subject,
    target: Target,
    classes: int,
) -> None:
    """Write the plan and the float32 network by it, in the plan's precision."""
    plan = parse_plan(found.plan, NAME)
    precision = plan.run.precision if plan.goal == "infer" else "fp32"
    model, dense = (copy.deepcopy(one).cpu().eval() for one in (model, subject.dense))
    save_folder(folder, build.to_precision(model, precision, torch.device("cpu"), "nchw"), dense, plan, target, classes)


def save_front(folder: Path, found: Study, plans: Plans, subject: Subject, target: Target, classes: int) -> None:
    """Write the network of each point of the front, for `lamina.pipeline.apply.front.load_front`."""
    plan = parse_plan(found.plan, NAME)
    dense = copy.deepcopy(plans.dense).cpu().eval()
    origin = recipe_files.Origin(target.name, classes, target.network, folds(plans.settings.method))
    for index, point in enumerate(found.front):
        model = build.to_precision(plans.trained(point.methods).cpu(), plan.run.precision, torch.device("cpu"), "nchw")
        methods = {
            layer: (impl, plans.merged.get(f"{layer} {impl}", (layer,))[1:]) for layer, impl in point.methods.items()
        }
        facts = {"accuracy": point.accuracy, "time_us": point.time_us}
        own = folder / FRONT / str(index)
        recipe_files.save(own, model, dense, origin, plan.run.precision, facts, methods)


def _step(one: Measured) -> Step:
    return Step(
        time_us=one.timing.median_us if one.timing else None,
        accuracy=one.accuracy,
        peak_bytes=one.peak_bytes,
        energy_j=one.energy_j,
    )


def _weighted(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Leaves with a weight matrix, by name."""
    return [
        (name, module)
        for name, module in standard_twin(model).named_modules()
        if not any(True for _ in module.children()) and any(one.dim() > 1 for one in module.parameters())
    ]


def _planned(
    name: str,
    module: nn.Module,
    layers: Layers,
    choice: Choice,
    ran: Mapping[str, str],
    trials: tuple[Trial, ...],
) -> PlannedLayer:
    impl = choice.get(name, DENSE)
    trial = next((one for one in trials if one.layer == name and one.impl == impl), None)
    time_us = trial.timing.median_us if trial and trial.timing else None
    reason = trial.reason if trial and impl != DENSE else layers.unsupported.get(name, "")
    if impl == DENSE and not reason:
        lost = [one for one in trials if one.layer == name and one.outcome == "inaccurate"]
        reason = lost[0].reason if lost else "no candidate was faster"
    return PlannedLayer(
        name=name,
        type=describe_type(module),
        method=_executed(impl, ran.get(name)),
        with_=layers.merged.get(f"{name} {impl}", (name,))[1:],
        dense_us=trial.dense_us if trial and impl != DENSE else layers.dense_us.get(name),
        time_us=time_us,
        density=layers.density.get(name),
        reason=reason,
    )


def _executed(impl: str, ran: str | None) -> str:
    """The implementation with the kernel that runs in the plan."""
    if ran is None:
        return impl
    tried = {"impl", "tile"}
    method = Method.parse(impl)
    options = [f"{key}={value}" for key, value in method.options if key not in tried]
    return f"{method.name}[{','.join([*options, ran])}]"
