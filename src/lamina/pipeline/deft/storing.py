"""Rows of ``deft`` in the trace database: each network's latency, and the change as a what-if."""

from __future__ import annotations

from lamina.build import Target
from lamina.pipeline.deft.records import DeftConfig, Measured
from lamina.record import LayerRun, WhatIf


def what_if(target: Target, config: DeftConfig, dense: Measured, result: Measured) -> WhatIf:
    """The change of the whole network."""
    accuracies = f"accuracy {dense.test_accuracy:.2f} % -> {result.test_accuracy:.2f} %"
    sizes = f"{dense.parameters} -> {result.parameters} parameters"
    return WhatIf(
        change="deft",
        detail=f"{accuracies}, {sizes}",
        layer=target.name,
        phase="forward",
        precision=config.precision,
        batch=config.batch,
        before=dense.latency,
        predicted_us=None,
        rule="",
        after=result.latency,
    )


def row(target: Target, config: DeftConfig, one: Measured, classes: int, device: str) -> LayerRun:
    """The forward pass of a whole network."""
    impl = {"dense": "dense", "deft": f"eliminated[recovery={config.recovery}]"}.get(one.name, f"pruned[by={one.name}]")
    return LayerRun(
        layer=target.name,
        kind="network",
        place=0,
        phase="forward",
        impl=impl,
        precision=config.precision,
        layout="nchw",
        batch=config.batch,
        device=device,
        inputs=((config.batch, *target.inputs[0].shape),),
        output=(config.batch, classes),
        parameters=one.parameters,
        flops=2 * one.multiplications * config.batch,
        bytes=None,
        outcome="ok",
        timing=one.latency,
    )
