"""A network ready to run at one point of a workload's grid: built, placed, with its inputs, and taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lamina import build, run
from lamina.accelerate.common.batchnorm import fold_batchnorm
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.errors import UnsupportedError
from lamina.pipeline.guard import Guard
from lamina.pipeline.targets import units
from lamina.run.loss import SeedGradient
from lamina.run.protocols import Trace
from lamina.spec import Phase, Point, Workload
from lamina.spec.layer_names import matching_layers


@dataclass(frozen=True)
class Prepared:
    """A network with its inputs at a point; ``backward`` is whether any phase but ``forward`` is wanted.

    ``layers`` is the network as it was traced. In ``trace``, layers that the method computes together are one;
    ``places`` are the indices of its calls in ``layers``, of the first one where there are several. ``selected`` are
    the names of its calls that the workload measures.
    """

    batch: int
    module: nn.Module
    inputs: list[Tensor]
    layers: build.Trace
    trace: Trace
    places: tuple[int, ...]
    selected: frozenset[str]
    seed: SeedGradient
    backward: bool

    def visits(
        self,
        target: Target,
        workload: Workload,
        point: Point,
        implement: run.Implement | None,
        guard: Guard,
        **options: Any,
    ) -> Iterator[tuple[run.Step, ...]]:
        """The selected layers and their phases, in order, watched by a guard; ``options`` as `run.walk` takes them."""
        return run.walk(
            self.trace,
            self.inputs,
            phases=workload.phases,
            precision=point.precision,
            seed_gradient=self.seed,
            input_gradients=target.input_gradients,
            implement=implement,
            layers=self.selected,
            guard=guard,
            lost=guard.lost,
            **options,
        )


def prepare(
    target: Target,
    workload: Workload,
    point: Point,
    data: Dataset | None,
    device: torch.device,
    warn: Callable[[str], object],
    training: bool = True,
) -> Prepared:
    """Build a network with weights and inputs drawn from the workload's seed.

    Args:
        data: where real inputs come from, ``None`` for random ones.
        warn: is called with each input that could not be real.
        training: whether layers such as dropout and batch normalization behave as in training.

    Raises:
        UsageError: a pattern of the workload matches no layer.
        UnsupportedError: the network cannot be traced, or has no layer.
    """
    batch = point.batch or target.batch
    torch.manual_seed(workload.seed)
    made = target.make(None).train(training)
    if workload.folded:
        try:
            fold_batchnorm(made)
        except UnsupportedError as error:
            warn(f"{target.name}: BatchNorm is not folded: {error}")
    if note := build.conversion(made, point.precision):
        own = build.stored_precision(made)
        warn(f"{target.name}: {note}" + (f"; --precision {own} measures it as it is" if own else ""))
    if told := run.precision_note(point.precision, device):
        warn(told)
    module = build.to_precision(made, point.precision, device, point.layout)
    inputs, labels, remarks = target.example(batch, data, point.precision, device, point.layout, workload.seed)
    for text in remarks:
        warn(text)
    found = build.trace(module, *inputs)
    if found.whole:
        warn(f"{target.name} is one row, since its layers cannot be traced: {found.whole}")
    layers = _planned(found, module, workload)
    if not layers.calls:
        raise UnsupportedError(f"{target.name}: its forward pass makes no tensor: there is no layer to measure")
    trace, places = build.merged(layers, units(layers, point.method))
    wanted = set(matching_layers(workload.layers, [call.name for call in layers.calls]))
    return Prepared(
        batch,
        module,
        inputs,
        layers,
        trace,
        places,
        frozenset(call.name for call in trace.calls if wanted.intersection(call.name.split(" + "))),
        run.seed_gradient(labels, workload.seed),
        any(phase is not Phase.FORWARD for phase in workload.phases),
    )


def _planned(trace: build.Trace, module: nn.Module, workload: Workload) -> build.Trace:
    """The trace with the methods that the workload has for single layers.

    Raises:
        UsageError: it has a method for a layer that the network does not have.
    """
    if not workload.plan:
        return trace
    paths = {id(one): name for name, one in module.named_modules()}
    matching_layers(list(workload.plan), paths.values())

    def planned(call: build.Call) -> build.Call:
        method = workload.plan.get(paths.get(id(call.module), ""))
        if method is None:
            return call
        layer = call.resolved.layer.model_copy(update={"method": method})
        return replace(call, resolved=replace(call.resolved, layer=layer))

    return replace(trace, calls=tuple(map(planned, trace.calls)))
