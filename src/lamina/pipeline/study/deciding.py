"""The last stage: the furthest plan that is faster than the best uniform settings as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina import run
from lamina.errors import DeviceLostError, LaminaError
from lamina.pipeline.convert import selector
from lamina.pipeline.study.combine import Candidate, Choice
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.judged import NEAR, Judged
from lamina.pipeline.study.layers import Layers
from lamina.pipeline.study.lossless import Faster, with_units, without_units
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.uniform import within
from lamina.pipeline.study.whole import Compared, Variant, compare, to_sequence, without_sparse
from lamina.record.study import Measured
from lamina.spec.plan import COMPILED

AGAIN = 3
"""Of the settings that are nearly the fastest, at most these are timed again."""


def decide(context: Context, plans: Plans, candidates: Sequence[Candidate], judged: Judged, layers: Layers) -> Compared:
    """Time plans as a whole, the furthest first, then half as far, until one is faster than the best uniform settings.

    Args:
        context: of the study.
        plans: makes the networks.
        candidates: plans that keep the accuracy, each a step further than the one before.
        judged: the uniform settings.
        layers: the fused units that may join a plan.

    Returns:
        The comparison with the first plan that is faster, or with the last that was tried.

    Raises:
        DeviceLostError: a plan made the GPU unusable.
    """
    subject, base = context.subject, judged.base
    chosen = selector(subject.device, subject.layer_mode(base.settings), subject.training, context.cache)
    modes = to_sequence(judged.wholes, base)
    kept = [one for one in judged.wholes[1:] if one.accuracy is not None and one.outcome == "slower"]
    near = _near(kept, judged.best)
    index: int | None = len(candidates) - 1  # None: not even the plan that changes the least ran
    while True:
        choice = {} if index is None else with_units(candidates[index].choice, layers.faster)
        context.watch(f"timing the whole network with {len(choice)} layers changed")
        made = _made(context, plans, choice, modes, layers.faster)
        if made is None:
            index = index // 2 if index else None
            continue
        with context.watched(plans, choice, "the plan"):
            before = [one for one in judged.wholes[:1] if one.timing is not None and one not in near]
            compared = compare(subject, made, base, [*before, *near], chosen, lambda: context.budget.left)
            compared = _within(compared, context.config.max_memory)
        # On a busy machine the first times were noise: what seemed slower then, but is faster now, is timed again.
        passed = [one for one in kept if one not in near and one.time_us < compared.uniform.time_us][:AGAIN]
        if passed and not context.budget.over:
            near += passed
            continue
        if compared.faster or not made:
            return compared
        context.note(f"{len(choice)} layers changed: not faster as a whole: {compared.reason}")
        if not index or context.budget.over:
            return compared
        index //= 2


def _near(kept: Sequence[Measured], best: Measured) -> list[Measured]:
    """The settings that are nearly as fast as the best, methods of other packages among them, the fastest first."""
    near = [one for one in sorted(kept, key=lambda one: one.time_us) if one.time_us <= NEAR * best.time_us]
    return near[:AGAIN] or [best]


def _made(
    context: Context, plans: Plans, choice: Choice, modes: Sequence[str], faster: Faster
) -> dict[str, list[Variant]] | None:
    """Networks by a choice for each mode; ``None``, with a note that says why, if they cannot be made."""
    if not choice:
        return {}
    try:
        with context.watched(plans, choice, "the plan"):
            return _variants(plans, choice, modes, faster)
    except DeviceLostError:
        raise
    except (LaminaError, RuntimeError) as error:
        context.note(f"{len(choice)} layers changed: {run.one_line(error)}")
        return None


def _variants(plans: Plans, choice: Choice, modes: Sequence[str], faster: Faster) -> dict[str, list[Variant]]:
    """Networks by a choice for each mode; where the compiler runs, which fuses itself, without fused units too."""
    wanted = [choice]
    separate = without_units(choice, faster)
    if separate not in ({}, choice) and any(mode in COMPILED for mode in modes):
        wanted.insert(0, separate)
    made: list[Variant] = [(one, plans.trained(without_sparse(one))) for one in wanted]
    return {mode: made if mode in COMPILED else made[-1:] for mode in modes}


def _within(compared: Compared, limit: int | None) -> Compared:
    """A comparison that a plan lost if it needs more memory than the limit in bytes."""
    plan = within(compared.plan, limit)
    return compared if plan.outcome != "refused" else replace(compared, plan=plan, faster=False, reason=plan.reason)
