"""Accuracy of the whole network at uniform settings, and the best of those that keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from lamina import run
from lamina.errors import LaminaError, UsageError
from lamina.pipeline.deft.calibration import accuracy
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.subject import Subject
from lamina.pipeline.study.uniform import fastest
from lamina.pipeline.watch import tracked
from lamina.record.study import Measured, Settings
from lamina.spec.whole_method import COMPRESSED, mixes, without

NEAR = 1.15
"""Settings whose time is within this factor of the fastest are judged too, and timed again beside the plan."""


@dataclass(frozen=True)
class Judged:
    """The network at uniform settings, with accuracies.

    Attributes:
        wholes: every row, the user's own first.
        reference: the user's own accuracy in percent; that of the fastest settings if the network does not run as it
            was.
        best: the fastest that keeps the accuracy.
        base: the fastest of those that methods of layers can be added to: not all methods of other packages allow any.
    """

    wholes: Sequence[Measured]
    reference: float
    best: Measured
    base: Measured


def judge(context: Context, wholes: Sequence[Measured]) -> Judged:
    """Measure the accuracy at each of the settings, the fastest first, until one keeps it.

    The fastest is judged even if the time of the stage is spent: else the study would go on at slow settings.

    Args:
        context: of the study.
        wholes: the network at uniform settings, the user's own first.

    Raises:
        UnsupportedError: the network runs at none of the settings.
    """
    rows, reference = _with_accuracy(context, wholes)
    kept = [one for one in rows if one.outcome != "inaccurate"]
    return Judged(rows, reference, fastest(kept), fastest(one for one in kept if mixes(one.settings.method)))


def _with_accuracy(context: Context, wholes: Sequence[Measured]) -> tuple[list[Measured], float]:
    """The rows in their order, and the accuracy that they are compared with."""
    before, *others = wholes
    judged: dict[Settings, Measured] = {}
    known: dict[tuple[str, str], float] = {}
    origin: Measured | None = None  # whose accuracy is the reference
    if before.timing is not None:
        origin = judged[before.settings] = replace(before, accuracy=accuracy_at(context, before.settings))
        known[_decisive(before)] = _of(origin)
    ahead = [one for one in others if one.timing is not None and one.outcome != "refused"]
    ahead.sort(key=lambda one: one.time_us)
    first_us = inf  # of the first that keeps the accuracy
    least = len(known)
    for one in tracked("accuracy at each setting", ahead, len(ahead), context.watch):
        key = _decisive(one)
        passed = one.time_us > NEAR * first_us
        try:
            if key not in known and not passed and (len(known) == least or not context.budget.over):
                known[key] = accuracy_at(context, one.settings)
            if key in known:
                one = replace(one, accuracy=known[key])
                origin = origin or one  # where the network does not run as it was
                judged[one.settings] = _verdict(context, one, origin)
            else:
                judged[one.settings] = _unknown(one, passed)
        except (LaminaError, RuntimeError) as error:
            judged[one.settings] = replace(one, outcome="failed", timing=None, reason=run.one_line(error))
            continue
        if judged[one.settings].outcome == "slower":
            first_us = min(first_us, one.time_us)
    return [judged.get(one.settings, one) for one in wholes], 0.0 if origin is None else _of(origin)


def _unknown(one: Measured, passed: bool) -> Measured:
    """A row without accuracy; ``passed`` says that faster settings keep theirs already."""
    if passed:
        return replace(one, outcome="slower", reason="another setting was faster")
    return replace(one, outcome="inaccurate", reason="the time budget was spent before its accuracy")


def _verdict(context: Context, one: Measured, origin: Measured) -> Measured:
    """Whether a row with an accuracy keeps that of the reference.

    Two trainings of one network differ by chance. Where that may explain the loss, both are trained again, and the
    means decide.
    """
    lost, trainings = _of(origin) - _of(one), ""
    limit = context.config.max_accuracy_drop
    if limit < lost <= limit + chance(context, _of(origin), _of(one)) and not context.budget.over:
        again = accuracy_at(context, one.settings, repeat=1)
        lost = (lost + accuracy_at(context, origin.settings, repeat=1) - again) / 2
        one, trainings = replace(one, accuracy=(_of(one) + again) / 2), ", the mean of two trainings"
    if lost > limit:
        return replace(one, outcome="inaccurate", reason=f"loses {lost:.2f} points{trainings}")
    return replace(one, outcome="slower", reason=f"loses {lost:.2f} points{trainings}" if trainings else one.reason)


def chance(context: Context, *accuracies: float) -> float:
    """The standard error in points of the difference of two trainings' accuracies, each a part of the same samples.

    Two settings of one trained network answer almost all samples alike: to infer, there is no such doubt.
    """
    if not (context.config.training and context.scored):
        return 0.0
    samples = len(context.subject.material.calibration)
    return sqrt(sum(one * (100 - one) for one in accuracies) / samples)


def _of(one: Measured) -> float:
    """The accuracy in percent of a row that has one."""
    return one.accuracy or 0.0


def _decisive(one: Measured) -> tuple[str, str]:
    """What of its settings decides the accuracy: compressed activations have the same gradients."""
    return one.settings.precision, without(one.settings.method, COMPRESSED)


def accuracy_at(context: Context, settings: Settings, test: bool = False, repeat: int = 0) -> float:
    """Accuracy of the dense network in percent, on the calibration samples or those of the test.

    ``repeat`` numbers trainings that differ in the order of their samples.

    Trainings in strict fp32 have the learner's precision instead, which is faster.
    """
    if context.config.training and settings.precision == "fp32":
        settings = replace(settings, precision=context.learner.settings.precision)
    return context.plans(settings).accuracy({}, test, repeat)


def scores_classes(subject: Subject) -> bool:
    """Whether the network's outputs are class scores of real labels."""
    parts = subject.material
    if parts.learn.name == "synthetic":
        return False
    try:
        dense = subject.at(subject.dense, Settings("fp32", "nchw", "eager")).eval()
        batches = list(parts.ordered(parts.calibration, 2))[:1]
        accuracy(dense, batches, subject.device, "fp32", parts.classes)
    except UsageError:
        return False
    return True
