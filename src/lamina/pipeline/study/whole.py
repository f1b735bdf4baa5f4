"""The last stage: the whole network by a choice, timed against the best uniform settings in several modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import nn

from lamina import accelerate, run
from lamina.accelerate.convert import put
from lamina.accelerate.methods.activation_sparsity import Sparse
from lamina.accelerate.methods.elimination import Eliminated
from lamina.accelerate.methods.elimination.indexed import Indexed
from lamina.accelerate.registry import candidates_of
from lamina.accelerate.select import DENSE, Selector, decide, forget_compiled, observe
from lamina.accelerate.training.sparsity_monitor import wire
from lamina.errors import LaminaError
from lamina.pipeline.convert import prepare_replay
from lamina.pipeline.study.combine import Choice
from lamina.pipeline.study.lossless import is_unit
from lamina.pipeline.study.parts import Parts, parts_us
from lamina.pipeline.study.subject import Step, Subject
from lamina.record import Timing
from lamina.record.study import Measured, Settings
from lamina.spec import Method
from lamina.spec.plan import REPLAYED

ROUNDS = 9
PLAN = "plan"
ALONE = "reduce-overhead"
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


def compare(
    subject: Subject,
    variants: Mapping[str, Sequence[Variant]],
    base: Measured,
    uniforms: Sequence[Measured],
    chosen: Selector,
    limit_s: float = inf,
) -> Compared:
    """Time a network by a choice in several modes, and the dense network at uniform settings.

    All take turns, but those that the compiler replays. Without variants, the dense network is compared with itself.

    Args:
        subject: the dense network.
        variants: of the network by the choice, by mode.
        base: the settings of the plan, but for the mode.
        uniforms: the network as its user runs it, and at settings that are nearly the best.
        chosen: calibrates layers that follow the sparsity of their inputs.
        limit_s: seconds for all rounds.
    """
    if variants:
        prepare_replay(subject.device)
    forget_compiled()
    steps: dict[str, Step] = {}
    modes: dict[str, str] = {}
    networks: dict[str, tuple[Settings, Variant, nn.Module, dict[str, str]]] = {}
    reasons: list[str] = []
    for mode, offered in variants.items():
        own = replace(base.settings, mode=mode)
        for choice, model in offered:
            units = sum(map(is_unit, choice.values()))
            name = f"{own}, {units} fused units" if units else str(own)
            try:
                network, ran = _deployed(subject, model, choice, own, chosen)
                steps[name], modes[name] = subject.step(network, own), mode
                networks[name] = own, (choice, model), network, ran
            except (LaminaError, RuntimeError) as error:
                reasons.append(f"{name}: {run.one_line(error)}")
    for one in uniforms:
        name = f"dense, {one.settings}"
        try:
            steps[name] = subject.step(subject.at(subject.start(one.settings), one.settings), one.settings)
            modes[name] = one.settings.mode
        except (LaminaError, RuntimeError) as error:
            reasons.append(f"{name}: {run.one_line(error)}")
    times = _in_turns(subject, steps, modes, limit_s)
    again = []
    for one in uniforms:
        time = times.get(f"dense, {one.settings}")
        if isinstance(time, Timing):
            again.append(replace(one, timing=time))
        elif time is not None:
            reasons.append(f"dense, {one.settings}: {run.one_line(time)}")
    if not again:  # nothing to compare the plan with
        failed = Measured(PLAN, base.settings, None, outcome="failed", reason="; ".join(reasons))
        return Compared(failed, tuple(uniforms), False, failed.reason)
    ours: dict[str, Timing] = {}
    for name in networks:
        found = times.get(name)
        if isinstance(found, Timing):
            ours[name] = found
        elif found is not None:
            reasons.append(f"{name}: {run.one_line(found)}")
    if not ours:
        failed = Measured(PLAN, base.settings, None, outcome="failed", reason="; ".join(reasons))
        return Compared(failed, tuple(again), False, failed.reason)
    best = min(ours, key=lambda name: ours[name].median_us)
    settings, (choice, model), network, ran = networks[best]
    if settings.mode == ALONE:
        forget_compiled()
        for _ in range(CAPTURES):
            steps[best]()
    parameters, peak, energy = subject.facts(network, settings, steps[best])
    plan = Measured(PLAN, settings, ours[best], None, parameters, peak, energy, "selected", "; ".join(reasons))
    compared = Compared(plan, tuple(again), False, "", choice, model, ran)
    assert compared.uniform.timing is not None
    verdict = decide({DENSE: compared.uniform.timing, PLAN: ours[best]}, "eager")
    faster = verdict.impl == PLAN
    parts = _parts(subject, network, settings) if faster else ({}, {})
    return replace(compared, faster=faster, reason=verdict.reason, parts=parts)


def _in_turns(
    subject: Subject, steps: Mapping[str, Step], modes: Mapping[str, str], limit_s: float
) -> dict[str, Timing | Exception]:
    """The time of each step; steps in the mode `ALONE` have rounds of their own, where they are several."""
    apart = [name for name in steps if modes[name] == ALONE]
    if len(apart) < 2:
        return subject.times(steps, ROUNDS, limit_s)
    together = {name: step for name, step in steps.items() if name not in apart}
    found = subject.times(together, ROUNDS, limit_s * len(together) / len(steps)) if together else {}
    for name in apart:
        forget_compiled()
        found |= subject.times({name: steps[name]}, ROUNDS, limit_s / len(steps))
    return found


def _parts(subject: Subject, network: nn.Module, settings: Settings) -> tuple[Parts, Parts]:
    """The parts of the dense step and of the plan's; none if they cannot be timed, as for want of memory."""
    forget_compiled()  # whose CUDA graph trees hold memory and stand in the way of other captures
    dense = subject.at(subject.start(settings), settings)
    try:
        return parts_us(subject, dense, settings), parts_us(subject, network, settings)
    except (LaminaError, RuntimeError):
        return {}, {}


def _deployed(
    subject: Subject, model: nn.Module, choice: Choice, settings: Settings, chosen: Selector
) -> tuple[nn.Module, dict[str, str]]:
    """The network at the settings, and by layer the implementation that was selected on what it reads there.

    Sparse layers are calibrated on a batch; layers with pruned inputs have other inputs than when they were tried.
    """
    network = subject.at(model, settings)
    inputs = subject.inputs(settings)
    example = inputs if isinstance(inputs, tuple) else (inputs,)
    sparse = {layer for layer, impl in choice.items() if Method.parse(impl).name == "sparse"}
    indexed = [name for name, layer in network.named_modules() if name in choice and isinstance(layer, Indexed)]
    ran: dict[str, str] = {}
    with subject.context(settings):
        if sparse:
            network, record = accelerate.convert(
                network, Sparse(), lambda name, _: name in sparse, example=example, selector=chosen
            )
            if subject.training and record.replaced:  # of the others, dense is faster on what they read here
                wire(network, example, sorted(one.layer for one in record.replaced))
        with torch.set_grad_enabled(subject.training):
            calls = observe(network, indexed, example)
        for name, call in calls.items():
            layer = network.get_submodule(name)
            offered = candidates_of(Eliminated())(layer, call, chosen)
            if len(offered) > 1:
                selection = chosen.select(f"{layer} on {call.signature}", offered, call)
                ran[name] = selection.impl
                put(network, name, offered[selection.impl]())
    return network, ran


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
