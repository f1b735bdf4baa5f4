"""The phases of a layer compared with float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from lamina.errors import CheckError
from lamina.run.check import judge, perturbed, relative_error, widened
from lamina.run.draws import RecordedDraws, UncheckedError, random_states, replayed
from lamina.run.layer_graph import LayerGraph, Results
from lamina.run.loss import has_gradient
from lamina.run.messages import one_line
from lamina.run.protocols import Call
from lamina.spec import Phase


@dataclass(frozen=True)
class Unchecked:
    """A phase without a float64 reference, and why."""

    reason: str


Checked = float | CheckError | Unchecked
"""What a comparison with float64 gives: the error, the error beyond the limit, or no reference."""


@dataclass(frozen=True)
class Float64Check:
    """Compares phases of layers with float64.

    Attributes:
        precision: of the network, which sets the error limit.
        device: that it runs on, whose random state is put back.
        differentiable: for each tensor, whether a training step needs its gradient.
    """

    precision: str
    device: torch.device
    differentiable: Mapping[int, bool]

    def errors(
        self, call: Call, layer: LayerGraph, wanted: Sequence[Phase], before: Callable[[], bool]
    ) -> dict[Phase, Checked]:
        """Each phase compared with float64.

        A layer that draws random numbers runs again from the state ``before`` it, and its reference gets the random
        tensors that it draws.
        """
        after = random_states(self.device)
        recorded = None
        if before():
            recorded = RecordedDraws(self.device)
            with recorded:
                layer = LayerGraph(call, layer.leaf, layer.received, layer.target)
                results = {phase: layer.results(phase) for phase in wanted}
            before()
        else:
            results = {phase: layer.results(phase) for phase in wanted}
        try:
            return self._compared(call, layer, results, recorded, before)
        finally:
            after()

    def _compared(
        self,
        call: Call,
        layer: LayerGraph,
        results: Mapping[Phase, Results],
        recorded: RecordedDraws | None,
        before: Callable[[], bool],
    ) -> dict[Phase, Checked]:
        """The results of each phase compared with float64, on the random tensors that were recorded."""
        try:
            with replayed(recorded):
                exact = self._exact(call, layer)
                references = {phase: exact.results(phase) for phase in results}
        except Exception as failure:
            if layer.target is not call.module and not isinstance(failure, UncheckedError):
                raise
            failed = "" if isinstance(failure, UncheckedError) else "does not run in float64: "
            reason = one_line(failure).replace("; ", ", ")
            return dict.fromkeys(results, Unchecked(f"unchecked: {failed}{reason}"))
        own = call.resolved.layer.kind == "opaque" and layer.target is call.module
        own = own and not hasattr(layer.target, "reference")  # an operation that may choose its precision itself
        checked: dict[Phase, Checked] = {}
        for phase, result in results.items():
            error = relative_error(result, references[phase])
            try:
                judge(error, "bf16" if own and recorded else self.precision)
                checked[phase] = error
            except CheckError as refusal:
                if recorded is not None and not recorded.complete:
                    inside = f" inside {recorded.missed}" if recorded.missed else ""
                    checked[phase] = Unchecked(f"unchecked: draws random numbers{inside}")
                elif own and recorded is None:
                    checked[phase] = error
                else:
                    before()
                    checked[phase] = self._judged(call, layer, phase, result, error, recorded) or refusal
        return checked

    def _judged(
        self,
        call: Call,
        layer: LayerGraph,
        phase: Phase,
        result: Results,
        error: float,
        recorded: RecordedDraws | None,
    ) -> float | None:
        """The error, if rounding the inputs explains it."""
        change = partial(perturbed, precision=self.precision)
        leaves = {n: change(t.detach()) if has_gradient(t.dtype) else t for n, t in layer.leaf.items()}
        leaves = {n: t.requires_grad_(self.differentiable[n]) for n, t in leaves.items()}
        received = {n: change(g) for n, g in layer.received.items()}
        with replayed(recorded):
            rounded = LayerGraph(call, leaves, received, layer.target).results(phase)
        try:
            judge(error, self.precision, relative_error(rounded, result))
        except CheckError:
            return None
        return error

    def _exact(self, call: Call, layer: LayerGraph) -> LayerGraph:
        """The layer in float64. Merged layers are compared with the separate ones."""
        double = {n: widened(t.detach()) for n, t in layer.leaf.items()}
        leaves = {n: t.requires_grad_(self.differentiable[n]) for n, t in double.items()}
        received = {n: widened(g) for n, g in layer.received.items()}
        reference = call.module if isinstance(call.module, nn.Sequential) else layer.target
        return LayerGraph(call.double(), leaves, received, _reference(reference))


def _reference(target: nn.Module | None) -> nn.Module | None:
    """The float64 reference of a module: the module itself, or the result of its ``reference()``, in float64."""
    if target is None:
        return None
    plain: nn.Module = target.reference() if hasattr(target, "reference") else target  # type: ignore[operator]
    double: nn.Module = copy.deepcopy(plain)._apply(widened)
    return double
