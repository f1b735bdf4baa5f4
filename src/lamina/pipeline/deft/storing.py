"""Rows of ``deft`` in the trace database: each network's latency, and the change as a what-if."""

from __future__ import annotations

from lamina.build import Target
from lamina.pipeline.deft.records import DeftConfig, Measured, Objective, worded
from lamina.record import LayerRun, WhatIf


def what_if(target: Target, config: DeftConfig, dense: Measured, result: Measured, objective: Objective) -> WhatIf:
    """The change of the whole network."""
    before, after = (worded(objective, one.test_accuracy) for one in (dense, result))
    accuracies = f"{before} -> {after.removeprefix(objective).strip()}"
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


def row(target: Target, config: DeftConfig, one: Measured, output: tuple[int, ...], device: str) -> LayerRun:
    """The forward pass of a whole network, with the shape of its first output."""
    known = {"dense": "dense", "dense-tuned": "dense[tuned=true]", "deft": f"eliminated[recovery={config.recovery}]"}
    impl = known.get(one.name, f"pruned[by={one.name}]")
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
        inputs=tuple((config.batch, *source.shape) for source in target.inputs),
        output=output,
        parameters=one.parameters,
        flops=2 * one.multiplications * config.batch,
        bytes=None,
        outcome="ok",
        timing=one.latency,
    )
