"""What became of every setting and every candidate in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.config import lossless
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.judged import accuracy_at
from lamina.pipeline.study.plans import Plans
from lamina.pipeline.study.whole import Compared
from lamina.pipeline.watch import tracked
from lamina.record.study import Measured, Outcome, Trial


def settled(context: Context, wholes: Sequence[Measured], compared: Compared, plans: Plans) -> list[Measured]:
    """The whole networks with what became of each, the plan last.

    Accuracies are those of the test samples; times are those of the last comparison, where a network was in it.

    Args:
        context: of the study.
        wholes: the network at uniform settings.
        compared: the plan beside the best of them. If it is not faster, the best uniform settings are the plan.
        plans: at the settings of the plan.
    """
    best = compared.uniform.settings
    again = {one.settings: one.timing for one in compared.uniforms}
    rows = []
    for one in tracked("accuracy on the test samples", wholes, len(wholes), context.watch):
        if one.accuracy is not None and one.timing is not None:
            one = replace(one, accuracy=accuracy_at(context, one.settings, test=True))
        one = replace(one, timing=again.get(one.settings, one.timing))
        if one.settings == best and not compared.selected:
            one = replace(one, outcome="selected", reason="no layer by another method is faster as a whole")
        rows.append(one)
    if compared.selected:
        accuracy = plans.accuracy(compared.selected, test=True)
        return [*rows, replace(compared.plan, accuracy=accuracy, reason=compared.reason)]
    chosen = next(one for one in rows if one.settings == best)
    return [*rows, replace(chosen, name="plan")]


def settled_trial(trial: Trial, choice: Choice) -> Trial:
    """A candidate with what became of it in a plan that has the choice."""
    if trial.outcome != "selected" or choice.get(trial.layer) == trial.impl:
        return trial
    if trial.layer in choice:
        return replace(trial, outcome="slower", reason=f"{choice[trial.layer]} was selected; {trial.reason}")
    outcome: Outcome = "slower" if lossless(trial.impl) else "inaccurate"
    return replace(trial, outcome=outcome, reason=f"faster alone, but not in the plan; {trial.reason}")
