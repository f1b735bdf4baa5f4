"""The last stage: the whole network by a choice, timed against the best uniform settings in several modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from torch import nn

from lamina import run
from lamina.accelerate.select import DENSE, Selector, decide, forget_compiled
from lamina.errors import LaminaError
from lamina.pipeline.convert import prepare_replay
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.deployed import deployed
from lamina.pipeline.study.lossless import is_unit
from lamina.pipeline.study.parts import Parts, neighbours, parts_us
from lamina.pipeline.study.subject import Step, Subject
from lamina.record import Mode, Timing
from lamina.record.study import Measured, Settings
from lamina.spec import Method
from lamina.spec.plan import REPLAYED

ROUNDS = 9
PLAN = "plan"
ALONE: Mode = "reduce-overhead"
"""The mode of steps that are timed while the compiler knows no other; see `forget_compiled`."""
CAPTURES = 3
"""Calls that the compiler needs until it replays."""


@dataclass(frozen=True)
class Compared:
    """A plan beside the best uniform settings.

    Attributes:
        plan: the network by the choice, in its fastest mode; without a time if it did not run.
        uniforms: the network at uniform settings, timed in the same rounds.
        faster: whether the plan is faster by more than the spread.
        reason: one sentence with both times.
        choice: of the plan; that of the fastest variant.
        model: the float32 network by it.
        ran: by layer with pruned inputs, the implementation that was selected in the plan.
        parts: of the dense step in the mode of a plan that is faster, and of the plan's, each alone.
    """

    plan: Measured
    uniforms: tuple[Measured, ...]
    faster: bool
    reason: str
    choice: Choice = field(default_factory=dict)
    model: nn.Module | None = None
    ran: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Parts, Parts] = ({}, {})

    @property
    def uniform(self) -> Measured:
        """The fastest of the uniform settings that fit into memory."""
        fits = [one for one in self.uniforms if one.outcome != "refused"]
        return min(fits, key=lambda one: one.time_us)

    @property
    def selected(self) -> Choice:
        """The choice that the study ends with: the plan's, or none if that is not faster."""
        return self.choice if self.faster else {}


Variant = tuple[Choice, nn.Module]
"""A choice, and the float32 network by it."""


@dataclass(frozen=True)
class _Runner:
    """A network that takes part in a comparison.

    Attributes:
        settings: of the whole network.
        network: at the settings.
        step: of it.
        variant: what it was made of, if it is the plan's.
        ran: by layer with pruned inputs, the implementation that was selected in it.
    """

    settings: Settings
    network: nn.Module
    step: Step
    variant: Variant | None = None
    ran: Mapping[str, str] = field(default_factory=dict)


def compare(
    subject: Subject,
    variants: Mapping[str, Sequence[Variant]],
    base: Measured,
    uniforms: Sequence[Measured],
    chosen: Selector,
    left_s: Callable[[], float] = lambda: inf,
) -> Compared:
    """Time a network by a choice in several modes, and the dense network at uniform settings.

    All take turns, but those that the compiler replays. Without variants, the dense network is compared with itself.

    Args:
        subject: the dense network.
        variants: of the network by the choice, by mode.
        base: the settings of the plan, but for the mode.
        uniforms: the network as its user runs it, and at settings that are nearly the best.
        chosen: calibrates layers that follow the sparsity of their inputs.
        left_s: seconds that are left; there are at least three rounds.
    """
    if variants:
        prepare_replay(subject.device)
    forget_compiled()
    runners: dict[str, _Runner] = {}
    reasons: dict[str, str] = {}

    def enter(name: str, make: Callable[[], _Runner]) -> None:
        try:
            runners[name] = make()
        except (LaminaError, RuntimeError) as error:
            reasons[name] = run.one_line(error)

    for mode, offered in variants.items():
        for variant in offered:
            settings = replace(base.settings, mode=mode)
            enter(_name(settings, variant), partial(_of_plan, subject, settings, variant, chosen))
    for one in uniforms:
        enter(_name(one.settings), partial(_of_dense, subject, one.settings))
    times: dict[str, Timing] = {}
    for name, time in _in_turns(subject, runners, left_s()).items():
        if isinstance(time, Timing):
            times[name] = time
        else:
            reasons[name] = run.one_line(time)
    again = tuple(replace(one, timing=times[name]) for one in uniforms if (name := _name(one.settings)) in times)
    plans = [name for name in times if runners[name].variant is not None]
    said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    if not (again and plans):
        failed = Measured(PLAN, base.settings, None, outcome="failed", reason=said)
        return Compared(failed, again or tuple(uniforms), False, said)
    best = min(plans, key=lambda name: times[name].median_us)
    compared = _decided(subject, runners[best], times[best], again, said)
    if not compared.faster:
        return compared
    return replace(compared, parts=_parts(subject, runners[best].network, runners[best].settings, left_s))


def _name(settings: Settings, variant: Variant | None = None) -> str:
    if variant is None:
        return f"dense, {settings}"
    units = sum(map(is_unit, variant[0].values()))
    return f"{settings}, {units} fused units" if units else str(settings)


def _of_plan(subject: Subject, settings: Settings, variant: Variant, chosen: Selector) -> _Runner:
    choice, model = variant
    network, ran = deployed(subject, model, choice, settings, chosen)
    return _Runner(settings, network, subject.step(network, settings), variant, ran)


def _of_dense(subject: Subject, settings: Settings) -> _Runner:
    network = subject.at(subject.start(settings), settings)
    return _Runner(settings, network, subject.step(network, settings))


def _decided(subject: Subject, ours: _Runner, timing: Timing, uniforms: tuple[Measured, ...], said: str) -> Compared:
    """The plan in its fastest mode, with its facts, and whether it is faster than the best of the uniform settings."""
    if ours.settings.mode == ALONE:
        forget_compiled()
        for _ in range(CAPTURES):
            ours.step()
    parameters, peak, energy = subject.facts(ours.network, ours.settings, ours.step)
    plan = Measured(PLAN, ours.settings, timing, None, parameters, peak, energy, "selected", said)
    assert ours.variant is not None
    compared = Compared(plan, uniforms, False, "", *ours.variant, ours.ran)
    assert compared.uniform.timing is not None
    verdict = decide({DENSE: compared.uniform.timing, PLAN: timing}, "eager")
    return replace(compared, faster=verdict.impl == PLAN, reason=verdict.reason)


def _in_turns(subject: Subject, runners: Mapping[str, _Runner], limit_s: float) -> dict[str, Timing | Exception]:
    """The time of each step; steps in the mode `ALONE` have rounds of their own, where they are several."""
    apart = {name: one.step for name, one in runners.items() if one.settings.mode == ALONE}
    if len(apart) < 2:
        apart = {}
    together = {name: one.step for name, one in runners.items() if name not in apart}
    groups: dict[Mode, dict[str, Step]] = {"eager": together, ALONE: apart}
    found: dict[str, Timing | Exception] = {}
    for mode, steps in groups.items():
        if steps:
            found |= subject.times(steps, ROUNDS, limit_s * len(steps) / len(runners), mode)
    return found


def _parts(
    subject: Subject, network: nn.Module, settings: Settings, left_s: Callable[[], float]
) -> tuple[Parts, Parts]:
    """The parts of the dense step and of the plan's; none if they cannot be timed, as for want of memory."""
    forget_compiled()  # whose CUDA graphs hold memory
    dense = subject.at(subject.start(settings), settings)
    try:
        fused = neighbours(subject, dense, settings, left_s())
        return parts_us(subject, dense, settings, fused), parts_us(subject, network, settings, fused)
    except (LaminaError, RuntimeError):
        return {}, {}


def to_sequence(wholes: Sequence[Measured], best: Measured) -> list[str]:
    """Modes to try a plan in: that of the best settings, and others that were nearly as fast.

    Of those, eager mode and compiling without CUDA graphs only where no other replays: they have more launch overhead.
    """
    assert best.timing is not None
    near = [
        one.settings.mode
        for one in wholes
        if one.timing is not None
        and replace(one.settings, mode=best.settings.mode) == best.settings
        and one.timing.median_us <= 1.5 * best.timing.median_us
    ]
    replayed = [mode for mode in near if mode in REPLAYED]
    return list(dict.fromkeys([best.settings.mode, *(replayed or near)]))


def without_sparse(choice: Mapping[str, str]) -> dict[str, str]:
    """The choice without layers that are calibrated at the settings: they are converted there."""
    return {layer: impl for layer, impl in choice.items() if Method.parse(impl).name != "sparse"}
