"""Rows without a time yet: what a layer, or a whole network, is and costs at one point of a workload's grid."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.build import Target
from lamina.record import LayerRun, Outcome
from lamina.spec import ITEM_BYTES, Method, Phase, Point, ResolvedLayer

PLAN = "plan"
"""The implementation of a network whose layers have methods of their own."""

WHOLE_STEP = "step"
"""The phase of the row that holds a whole network's training step, timed at once."""


def layer_row(
    layer: ResolvedLayer,
    place: int,
    phase: Phase,
    point: Point,
    batch: int,
    device: str,
    parameters: int | None = None,
    outcome: Outcome = "ok",
    reason: str = "",
    rel_error: float | None = None,
    note: str = "",
) -> LayerRun:
    """The row of one phase of one layer; ``parameters`` are those of the implementation, the layer's by default."""
    method = layer.layer.method or point.method
    known = method.dense  # a method that changes the layer changes its work, which the dense closed form does not tell
    cost = layer.cost(phase, ITEM_BYTES[point.precision])
    return LayerRun(
        layer=layer.name,
        kind=getattr(layer.layer, "operation", layer.layer.kind),
        place=place,
        phase=phase.value,
        impl=str(method),
        precision=point.precision,
        layout=point.layout,
        batch=batch,
        device=device,
        inputs=layer.inputs,
        output=layer.output,
        parameters=layer.parameters if parameters is None else parameters,
        flops=cost.flops if known and layer.layer.counted else None,
        bytes=cost.bytes if known else None,
        outcome=outcome,
        reason=reason,
        rel_error=rel_error,
        note=note,
    )


def network_row(
    target: Target,
    layers: Sequence[ResolvedLayer],
    phases: Sequence[Phase],
    point: Point,
    batch: int,
    device: str,
    parameters: int | None = None,
) -> LayerRun:
    """The row of the whole network's step; ``parameters`` are those of the converted network, if it is one."""
    itemsize = ITEM_BYTES[point.precision]
    planned = point.method == Method() and any(layer.layer.method for layer in layers)
    dense = point.method == Method() and not planned
    uncounted = sum(bool(layer.phases) and not layer.layer.counted for layer in layers)
    flops = sum(layer.cost(phase, itemsize).flops for layer in layers for phase in layer.phases if phase in phases)
    return LayerRun(
        layer=target.name,
        kind="network",
        place=len(layers),
        phase=WHOLE_STEP,
        impl=PLAN if planned else str(point.method),
        precision=point.precision,
        layout=point.layout,
        batch=batch,
        device=device,
        inputs=layers[0].inputs[:1] if layers else (),
        output=layers[-1].output if layers else (),
        parameters=sum(layer.parameters for layer in layers) if parameters is None else parameters,
        flops=flops if dense and (flops or not uncounted) else None,
        bytes=None,
        outcome="ok",
        uncounted=uncounted if dense else 0,
    )


def joined(*notes: str) -> str:
    """Notes on one row as one."""
    return "; ".join(note for note in notes if note)
