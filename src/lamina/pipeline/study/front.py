"""The front of accuracy over time: plans from the one that damages nothing on, and how far they keep the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina import measure, run
from lamina.errors import DeviceLostError, LaminaError
from lamina.pipeline.study.combine import Candidate, Choice, Option, furthest, sequence, spread
from lamina.pipeline.study.config import lossless
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.judged import Judged, accuracy_at
from lamina.pipeline.study.layers import Layers
from lamina.pipeline.study.lossless import is_unit
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.predicted import scale
from lamina.pipeline.watch import tracked
from lamina.record.study import FrontPoint
from lamina.spec.plan import COMPILED

FRONT_POINTS = 8
"""Plans along the front whose accuracy is measured."""


def find_front(
    context: Context, plans: Plans, judged: Judged, layers: Layers
) -> tuple[list[Candidate], list[FrontPoint]]:
    """Find how far layers can change within the accuracy budget.

    Args:
        context: of the study.
        plans: at the settings of ``judged.base``.
        judged: the uniform settings.
        layers: the candidates of each layer.

    Returns:
        The plans in sequence up to the furthest that keeps the accuracy, and the accuracy over the predicted time of
        those that were tried, the fastest first.
    """
    steps = sequence(_options(context, plans, layers), layers.dense_us)
    context.watch(f"{len(steps)} plans from the most accurate to the fastest")
    candidates = [replace(one, choice=plans.possible(one.choice)) for one in steps]
    index, points = _probed(context, plans, candidates, judged, scale(judged.base, sum(layers.dense_us.values())))
    return candidates[: index + 1], sorted(points, key=lambda point: point.time_us)


def _options(context: Context, plans: Plans, layers: Layers) -> dict[str, list[Option]]:
    """By layer, the candidates that are faster, with what they damage."""
    rows = _allowed(context, plans, layers)
    plans.recover(rows)
    found: dict[str, list[Option]] = {}
    for layer, row in tracked("what each candidate damages", rows.items(), len(rows), context.watch):
        for impl in row:
            try:
                one = replace(layers.option(layer, impl), damage=plans.damage(layer, impl))
                found.setdefault(layer, []).append(one)
            except LaminaError as error:
                context.note(f"{layer}, {impl}: {run.one_line(error)}")
    return found


def _allowed(context: Context, plans: Plans, layers: Layers) -> dict[str, dict[str, float]]:
    """By layer, the faster candidates that plans may have, with what each saves in microseconds.

    Synthetic data tell nothing of what a training would lose. Fused units damage nothing: where the compiler runs, they
    join at the end, if the plan is faster with them.
    """
    exact = context.config.training and context.subject.material.learn.name == "synthetic"
    compiles = plans.settings.mode in COMPILED

    def allowed(impl: str) -> bool:
        return not (exact and not lossless(impl)) and not (compiles and is_unit(impl))

    return {
        layer: {impl: saved for impl, saved in row.items() if allowed(impl)} for layer, row in layers.faster.items()
    }


def _probed(
    context: Context, plans: Plans, candidates: Sequence[Candidate], judged: Judged, factor: float
) -> tuple[int, list[FrontPoint]]:
    """The index of the furthest plan that keeps the accuracy, and a point for each that was tried.

    Layers save ``factor`` times what they save alone.
    """
    dense_us = judged.base.time_us
    points = [FrontPoint(dense_us, accuracy_at(context, judged.base.settings), {}, measured=True)]
    limit = context.config.max_accuracy_drop
    doubtful: dict[int, str] = {}  # plans that lose no more, and may lose more
    longest = 0.0

    def accepted(index: int) -> bool | None:
        nonlocal longest
        candidate = candidates[index]
        if not context.budget.covers(longest):
            context.note("the time budget was spent before every plan had its accuracy")
            return None
        stopwatch = measure.Stopwatch()
        found = _accuracy(context, plans, candidate.choice)
        longest = max(longest, stopwatch.seconds)
        if found is None:
            return False
        accuracy, error = found
        points.append(FrontPoint(dense_us - factor * candidate.saved_us, accuracy, dict(candidate.choice)))
        lost = judged.reference - accuracy
        # The furthest of several plans that seem to keep the accuracy is often one that chance favors.
        kept = lost <= max(0.0, limit - error)
        changed, loss = f"{len(candidate.choice)} layers changed", f"{lost:.2f} ± {error:.2f} points"
        if lost <= limit and not kept:
            doubtful[index] = f"{changed} lose {loss}"
        told = f"{plans.metric} {accuracy:.2f} %" + (f", {loss} lost" if error else "")
        context.watch(f"{changed}: {told}, {'within' if kept else 'beyond'} the budget")
        return kept

    # A training adapts to the fastest plan more often than a few epochs of fine-tuning do.
    index = furthest(len(candidates), accepted, last_first=context.config.training)
    known = {tuple(sorted(point.methods.items())) for point in points}
    for other in spread(len(candidates), FRONT_POINTS):  # more points, while there is time
        if tuple(sorted(candidates[other].choice.items())) not in known and accepted(other) is None:
            break
    if (furthest_doubtful := max(doubtful, default=0)) > index:
        context.note(
            f"{doubtful[furthest_doubtful]}, which may be more than {limit:g}: more calibration samples than "
            f"{len(context.subject.material.calibration)}, or a larger --max-accuracy-drop, may allow that plan"
        )
    return index, points


def _accuracy(context: Context, plans: Plans, choice: Choice) -> tuple[float, float] | None:
    """Accuracy of the network by a choice in percent, and the standard error of what it loses.

    ``None``, with a note that says why, if the network does not run.
    """
    try:
        with context.watched(plans, choice, "accuracy of plans"):
            return plans.accuracy(choice), plans.standard_error(choice)
    except DeviceLostError:
        raise
    except (LaminaError, RuntimeError) as error:  # such as a loss that is not finite, or too little memory
        context.note(f"{len(choice)} layers changed: {run.one_line(error)}")
        return None
