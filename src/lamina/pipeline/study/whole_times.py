"""Steps of the whole network at several settings, timed interleaved; from the journal where it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lamina import measure, run
from lamina.accelerate.select import forget_compiled
from lamina.errors import DeviceLostError
from lamina.pipeline.study.context import Context
from lamina.pipeline.study.subject import Step
from lamina.pipeline.study.trials import OVER
from lamina.pipeline.watch import tracked
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.spec.plan import COMPILED

BEFORE = Settings("fp32", "nchw", "eager")
"""How PyTorch runs a network that its user changes nothing about."""

ROUNDS = 7
TURNS_S = 1.5
"""Seconds of timing for each of the settings that take turns. What is near the fastest is timed again at the end."""
CALLS = 8
"""Of a step, to build it and to time it."""
COMPILE_S = 45.0
"""A stage needs this long for each compilation; less on a GPU."""


@dataclass
class _Turns:
    """Networks that are timed interleaved: their steps and facts by setting, and why others have none.

    ``unreached`` are those that the time budget does not cover, which a longer study tries.
    """

    steps: dict[Settings, Step] = field(default_factory=dict)
    facts: dict[Settings, tuple[int, int | None, float | None]] = field(default_factory=dict)
    reasons: dict[Settings, str] = field(default_factory=dict)
    unreached: dict[Settings, str] = field(default_factory=dict)


def timed_at(context: Context, settings: Sequence[Settings]) -> list[Measured]:
    """A row of each of the settings; what the time budget does not reach is not in the journal.

    Raises:
        DeviceLostError: a network made the GPU unusable.
    """
    journal = context.journal
    new = [one for one in settings if _key(one) not in journal]
    if new:
        forget_compiled()
    turns = _Turns()
    for one in tracked("building the network at each setting", new, len(new), context.watch):
        _build(context, one, turns)
    times = _times(context, turns)
    for one, timing in times.items():
        journal.put(_key(one), asdict(Measured("uniform", one, timing, None, *turns.facts[one])))
    for one, reason in turns.reasons.items():
        journal.put(_key(one), asdict(_failed(one, reason)))
    rows = [
        measured_of(journal[_key(one)]) if _key(one) in journal else _failed(one, turns.unreached.get(one, ""))
        for one in settings
    ]
    return [replace(row, name="before") if row.settings == BEFORE else row for row in rows]


def measured_of(document: Mapping[str, Any]) -> Measured:
    """A row of the journal."""
    values = dict(document)
    timing, settings = values.pop("timing"), values.pop("settings")
    return Measured(settings=Settings(**settings), timing=Timing(**timing) if timing else None, **values)


def _key(settings: Settings) -> str:
    return f"whole {settings}"


def _failed(settings: Settings, reason: str) -> Measured:
    return Measured("uniform", settings, None, outcome="failed", reason=reason)


def _build(context: Context, settings: Settings, turns: _Turns) -> None:
    """Run a step of the network at the settings once, or say why not."""
    subject = context.subject
    if settings != BEFORE and (reason := _unreached(context, settings)) is not None:
        turns.unreached[settings] = reason
        return
    if (reason := context.fatal.reason(str(settings))) is not None:
        turns.reasons[settings] = reason
        return
    try:
        with context.fatal(str(settings), "whole network"):
            model = subject.at(subject.start(settings), settings)
            step = subject.step(model, settings)
            with measure.beside():
                step()
            turns.facts[settings] = subject.facts(model, settings, step)
            turns.steps[settings] = step
    except DeviceLostError:
        raise
    except Exception as error:  # a compiler, a backend or the network itself
        turns.reasons[settings] = run.one_line(error)


def _unreached(context: Context, settings: Settings) -> str | None:
    """Why the time budget does not cover a setting, or nothing."""
    needed, left = _needed_s(context, settings), context.budget.left
    if left >= needed:
        return None
    if left <= 0:
        return OVER
    return f"it needs about {needed:.0f} s, and the time budget of this stage has {left:.0f} s left: raise --budget"


def _needed_s(context: Context, settings: Settings) -> float:
    """Seconds that a network takes to compile, or to run a few times if the time of a step is known."""
    if settings.mode in COMPILED and context.subject.device.type != "cuda":
        return COMPILE_S
    known = measured_of(context.journal[_key(BEFORE)]).timing if _key(BEFORE) in context.journal else None
    return CALLS * known.median_us / 1e6 if known else 0.0


def _times(context: Context, turns: _Turns) -> dict[Settings, Timing]:
    """The interleaved times of all steps; what fails there, or made an earlier process end, has a reason."""
    together = f"turns of {'; '.join(map(str, turns.steps))}"
    if (reason := context.fatal.reason(together)) is not None:
        turns.reasons |= dict.fromkeys(turns.steps, reason)
        turns.steps.clear()
    if not turns.steps:
        return {}
    limit_s = min(TURNS_S * len(turns.steps), context.budget.left / 2)
    with context.fatal(together, "whole network"):
        times = context.subject.times({str(one): step for one, step in turns.steps.items()}, ROUNDS, limit_s)
    found: dict[Settings, Timing] = {}
    for one in turns.steps:
        time = times[str(one)]
        if isinstance(time, Exception):
            turns.reasons[one] = run.one_line(time)
        else:
            found[one] = time
    return found
