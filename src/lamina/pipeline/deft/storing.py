"""What the trace database keeps of ``deft``: each network's time as a row, and the whole change as a what-if."""

from __future__ import annotations

from lamina.build import Target
from lamina.pipeline.deft.records import Asked, Measured
from lamina.record import LayerRun, WhatIf


def what_if(target: Target, asked: Asked, dense: Measured, result: Measured) -> WhatIf:
    """The whole network's change."""
    said = f"accuracy {dense.test_accuracy:.2f} % -> {result.test_accuracy:.2f} %"
    sizes = f"{dense.parameters} -> {result.parameters} parameters"
    return WhatIf(
        change="deft",
        detail=f"{said}, {sizes}",
        layer=target.name,
        phase="forward",
        precision=asked.precision,
        batch=asked.batch,
        before=dense.latency,
        predicted_us=None,
        rule="",
        after=result.latency,
    )


def row(target: Target, asked: Asked, one: Measured, classes: int, device: str) -> LayerRun:
    """A whole network's forward pass, at once."""
    impl = {"dense": "dense", "deft": f"eliminated[recovery={asked.recovery}]"}.get(one.name, f"pruned[by={one.name}]")
    return LayerRun(
        layer=target.name,
        kind="network",
        place=0,
        phase="forward",
        impl=impl,
        precision=asked.precision,
        layout="nchw",
        batch=asked.batch,
        device=device,
        inputs=((asked.batch, *target.inputs[0].shape),),
        output=(asked.batch, classes),
        parameters=one.parameters,
        flops=2 * one.multiplications * asked.batch,
        bytes=None,
        outcome="ok",
        timing=one.latency,
    )
