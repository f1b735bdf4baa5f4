"""A model by a plan as a folder: ``plan.toml``, and what `lamina.load` reads: a recipe and the weights."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from lamina import build
from lamina.build import Target
from lamina.pipeline.apply.model import fold_norms
from lamina.pipeline.deft import recipe_files
from lamina.spec.plan import NAME, Plan
from lamina.spec.plan_file import write_plan
from lamina.spec.whole_method import folds


def save(folder: Path, model: nn.Module, dense: nn.Module, plan: Plan, target: Target, classes: int | None) -> None:
    """Write a plan with the network by it.

    Args:
        folder: created if it does not exist.
        model: the network by the plan, in the plan's precision.
        dense: the network that it was made from, with the same structure but for folded BatchNorm.
        plan: its layers tell the methods.
        target: where the dense network comes from.
        classes: of the data, if they are known.

    Raises:
        UsageError: a layer's type has no recipe, or the folder cannot be written.
    """
    dense = build.copied(dense)
    folded = folds(plan.run.method) and fold_norms(dense) is None
    origin = recipe_files.Origin(target.name, classes, target.network, folded)
    methods = {one.name: (one.method, one.with_) for one in plan.layers if one.method != "dense"}
    precision = plan.run.precision if plan.goal == "infer" else "fp32"
    facts = {"study": plan.network, "goal": plan.goal}
    recipe_files.save(folder, model, dense, origin, precision, facts, methods)
    write_plan(plan, folder / NAME)
