"""A network's training step, phase by phase: each phase of each layer as a callable on its actual buffers.

The walk runs forward once, filling the arena, then backward, so that every layer has the activations of its producers
and the gradients of its consumers. At each layer it yields the phases, which can be called repeatedly; the caller
decides what to do with them (time, profile, count zeros).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from lamina.errors import CheckError, UnsupportedError
from lamina.record import Outcome
from lamina.run.arena import Arena, MemoryPlan
from lamina.run.draws import random_states
from lamina.run.float64 import Checked, Float64Check, Unchecked
from lamina.run.layer_graph import LayerGraph
from lamina.run.lifetimes import memory_plan
from lamina.run.loss import has_gradient
from lamina.run.messages import one_line
from lamina.run.protocols import Call, Slot, Trace
from lamina.spec import Phase, ResolvedLayer

T = TypeVar("T")

Implement = Callable[[ResolvedLayer, nn.Module | None], nn.Module | None]
"""Returns a module that computes a layer by another method, or raises ``UnsupportedError`` with the reason.

Its argument is the layer's module, or ``None`` if the layer is a function; it returns that argument to keep the layer.
"""

Guarded = Callable[[str, str], AbstractContextManager[object]]
"""Makes the context in which a layer, by name, runs for a stage of the walk: ``forward``, ``check`` or ``backward``."""


def unguarded(layer: str, stage: str) -> AbstractContextManager[object]:
    """A context that does nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Step:
    """One phase of one layer. Either ``call`` is set, or ``reason`` says why there is none.

    ``outcome``: ``ok``; ``skipped`` if the phase does not apply; ``failed`` if it raised an error or failed the check.
    ``rel_error`` is ``None`` if checking is disabled, or if there is no float64 reference: ``note`` then says why.
    ``parameters`` are those of the implementation, ``module`` is what computes it, ``None`` for a function.
    """

    resolved: ResolvedLayer
    place: int
    phase: Phase
    call: Callable[[], object] | None = None
    outcome: Outcome = "ok"
    reason: str = ""
    rel_error: float | None = None
    note: str = ""
    parameters: int = 0
    module: nn.Module | None = None


def walk(
    trace: Trace,
    inputs: Sequence[Tensor],
    *,
    phases: Sequence[Phase],
    precision: str,
    seed_gradient: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    input_gradients: Sequence[bool] = (),
    implement: Implement | None = None,
    check: bool = True,
    plan: MemoryPlan | None = None,
    layers: Collection[str] | None = None,
    guard: Guarded = unguarded,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[Step, ...]]:
    """Visit every layer and yield its phases. A layer that raises an error is yielded as failed; the walk continues.

    Args:
        trace: the network.
        inputs: its input tensors.
        phases: the phases to yield.
        precision: precision of the network, which sets the error limit of the check.
        seed_gradient: maps the network's outputs to the gradients with respect to them.
        input_gradients: for each input, whether to compute the gradient with respect to it; none by default.
        implement: the method under test; activations and gradients still come from the dense layers.
        check: compare every phase with float64 first.
        plan: the arena's plan, if the caller has computed it already (`memory_plan`).
        layers: names of the layers to visit; all by default. The others only run.
        guard: makes the context of whatever runs a layer.
        lost: layers that must not run, and why: they are yielded as failed, their consumers get random values.
    """
    backward = any(phase is not Phase.FORWARD for phase in phases)
    arena = Arena(plan or memory_plan(trace, backward), inputs[0].device)
    needed = differentiable(trace, input_gradients)
    compared = Float64Check(precision, arena.device, needed) if check else None
    walker = _Walker(trace, inputs, tuple(phases), needed, implement, compared, arena, lost)

    visited = [layers is None or call.resolved.name in layers for call in trace.calls]

    def within(stage: str, place: int, action: Callable[[int], T]) -> T:
        with guard(trace.calls[place].name, stage):
            return action(place)

    if not backward:
        for place in range(len(trace.calls)):
            if visited[place]:
                yield within("check", place, walker.visit)
            within("forward", place, walker.forward)
        return
    for place in range(len(trace.calls)):
        within("forward", place, walker.forward)
    walker.seed(seed_gradient)
    for place in reversed(range(len(trace.calls))):
        if visited[place]:
            yield within("check", place, walker.visit)
        within("backward", place, walker.backward)


class _Walker:
    def __init__(
        self,
        trace: Trace,
        inputs: Sequence[Tensor],
        phases: tuple[Phase, ...],
        differentiable: Mapping[int, bool],
        implement: Implement | None,
        check: Float64Check | None,
        arena: Arena,
        lost: Mapping[str, str],
    ):
        self.trace, self.phases, self.differentiable = trace, phases, differentiable
        self.implement, self.check = implement, check
        self.arena, self.lost = arena, lost
        self.values: dict[int, Tensor] = dict(zip(trace.inputs, inputs, strict=True))
        self.gradients: dict[int, Tensor] = {}
        self.missing: dict[int, str] = {}

    def forward(self, place: int) -> None:
        """Run a layer and store its outputs for its consumers.

        If the layer raises an error, its consumers get random values; the visit of the layer reports the failure.
        """
        call = self.trace.calls[place]
        results: tuple[Tensor | None, ...]
        try:
            if call.name in self.lost:
                raise UnsupportedError(self.lost[call.name])
            with torch.no_grad():
                results = call.run([self.values[slot] for slot in call.inputs])
        except Exception:
            results = (None,) * len(call.outputs)
        for number, result in zip(call.outputs, results, strict=True):
            slot = self.trace.slots[number]
            try:
                value = random_values(slot, self.arena.device) if result is None else result
                self.values[number] = value if slot.base is not None else self._buffer("value", slot).copy_(value)
            except RuntimeError as error:
                self.missing[number] = one_line(error)

    def seed(self, seed_gradient: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        """Set the gradients of the network's outputs."""
        made = (n for n in self.trace.outputs if n in self.values and n not in self.trace.inputs)
        wanted = [n for n in made if has_gradient(self.trace.slots[n].dtype)]
        for number, gradient in zip(wanted, seed_gradient([self.values[n] for n in wanted]), strict=True):
            self._send(number, gradient)

    def visit(self, place: int) -> tuple[Step, ...]:
        """The requested phases of a layer."""
        call = self.trace.calls[place]
        resolved = call.resolved
        wanted = [phase for phase in resolved.phases if phase in self.phases]
        if not wanted:
            return ()
        inputs = [self.values[n] for n in call.inputs if n in self.values]
        unsafe = {phase: reason for phase in wanted if (reason := known_crash(resolved, inputs, phase))}
        skipped = (Step(resolved, place, phase, outcome="skipped", reason=unsafe[phase]) for phase in unsafe)
        return (*self._visit(place, [phase for phase in wanted if phase not in unsafe]), *skipped)

    def _visit(self, place: int, wanted: Sequence[Phase]) -> tuple[Step, ...]:
        """These phases of a layer."""
        call = self.trace.calls[place]
        resolved = call.resolved
        missing = [self.missing[n] for n in call.inputs if n in self.missing]
        if missing or call.name in self.lost:
            reason = self.lost.get(call.name) or f"its input could not be allocated: {missing[0]}"
            return tuple(Step(resolved, place, phase, outcome="failed", reason=reason) for phase in wanted)
        try:
            target = self.implement(resolved, call.module) if self.implement else call.module
            before = self._state(call, target)
            layer = LayerGraph(call, self._leaves(call), self._received(call), target)
            errors = self.check.errors(call, layer, wanted, before) if self.check else {}
        except UnsupportedError as error:
            return tuple(Step(resolved, place, phase, outcome="skipped", reason=one_line(error)) for phase in wanted)
        except Exception as error:  # whatever the code of a user's module raises
            return tuple(Step(resolved, place, phase, outcome="failed", reason=one_line(error)) for phase in wanted)
        return tuple(self._step(layer, resolved, place, phase, errors.get(phase)) for phase in wanted)

    def _state(self, call: Call, target: nn.Module | None) -> Callable[[], bool]:
        """A function that puts random state and buffers back, and returns whether random numbers were drawn."""
        random = random_states(self.arena.device)
        modules = (module for module in (call.module, target) if module is not None)
        values = {buffer: buffer.detach().clone() for module in modules for buffer in module.buffers()}

        def restore() -> bool:
            for buffer, value in values.items():
                buffer.data.copy_(value)  # as data: autograd may have saved the buffer
            return random()

        return restore

    def _step(
        self,
        layer: LayerGraph,
        resolved: ResolvedLayer,
        place: int,
        phase: Phase,
        checked: Checked | None,
    ) -> Step:
        if isinstance(checked, CheckError):
            return Step(resolved, place, phase, outcome="failed", reason=str(checked))
        call = layer.phase(phase)
        if call is None:
            return Step(resolved, place, phase, outcome="skipped", reason="its input needs no gradient")
        error, note = (None, checked.reason) if isinstance(checked, Unchecked) else (checked, "")
        return Step(
            resolved, place, phase, call, rel_error=error, note=note, parameters=layer.parameters, module=layer.target
        )

    def backward(self, place: int) -> None:
        """Propagate a layer's gradient to its producers, with the dense implementation."""
        call = self.trace.calls[place]
        targets = [n for n in dict.fromkeys(call.inputs) if self.differentiable[n] and n not in self.trace.inputs]
        if not targets or any(n in self.missing for n in (*call.inputs, *call.outputs)):
            return
        try:
            if call.name in self.lost:
                raise UnsupportedError(self.lost[call.name])
            layer = LayerGraph(call, self._leaves(call), self._received(call), call.module)
            gradients = layer.gradients([layer.leaf[n] for n in targets])
        except Exception:
            gradients = tuple(random_values(self.trace.slots[n], self.arena.device) for n in targets)
        for number, gradient in zip(targets, gradients, strict=True):
            if gradient is not None:
                self._send(number, gradient)

    def _leaves(self, call: Call) -> dict[int, Tensor]:
        return {n: self.values[n].detach().requires_grad_(self.differentiable[n]) for n in call.inputs}

    def _received(self, call: Call) -> dict[int, Tensor]:
        """Gradients of the outputs; random values if there are none (a dead branch)."""
        received = {n: self.gradients[n] for n in call.outputs if n in self.gradients}
        if not received:
            for number in call.outputs:
                if f"gradient {number}" in self.arena.plan.chunk_of:
                    self._send(number, random_values(self.trace.slots[number], self.arena.device))
                    received[number] = self.gradients[number]
        return received

    def _send(self, number: int, gradient: Tensor) -> None:
        if number in self.gradients:
            self.gradients[number].add_(gradient)
        else:
            self.gradients[number] = self._buffer("gradient", self.trace.slots[number]).copy_(gradient)

    def _buffer(self, what: str, slot: Slot) -> Tensor:
        return self.arena.tensor(f"{what} {slot.number}", slot.shape, slot.stride, slot.dtype)


def known_crash(layer: ResolvedLayer, inputs: Sequence[Tensor], phase: Phase) -> str:
    """Why PyTorch would end the process in this phase, if it is known to; seen with 2.13."""
    operation = getattr(layer.layer, "operation", "").lower().replace("_", "")
    if operation.startswith("groupnorm") and phase is Phase.BACKWARD_WEIGHT:
        for x in inputs:
            if x.device.type == "cpu" and x.dim() == 4 and not x.is_contiguous():
                return "PyTorch's group_norm crashes on the CPU for the weight gradient alone of a channels-last input"
    return ""


def random_values(slot: Slot, device: torch.device) -> Tensor:
    """A tensor in the place of one that a layer did not compute."""
    random = torch.randn if has_gradient(slot.dtype) else torch.zeros
    return random(slot.shape, dtype=slot.dtype, device=device)


def differentiable(trace: Trace, input_gradients: Sequence[bool]) -> dict[int, bool]:
    """For each tensor, whether a training step needs the gradient with respect to it."""
    needed = {slot.number: False for slot in trace.slots}
    for number, wanted in zip(trace.inputs, input_gradients, strict=False):
        needed[number] = wanted and has_gradient(trace.slots[number].dtype)
    for call in trace.calls:
        wanted = bool(call.weights) or any(needed[n] for n in call.inputs)
        for number in call.outputs:
            needed[number] = wanted and has_gradient(trace.slots[number].dtype)
    return needed
