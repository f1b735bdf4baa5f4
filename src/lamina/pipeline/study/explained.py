"""What limits the network before anything is changed: the headlines of a short bench."""

from __future__ import annotations

from lamina import measure, run
from lamina.errors import LaminaError
from lamina.pipeline.bench import bench
from lamina.pipeline.explain import explain
from lamina.pipeline.study.context import Context
from lamina.record.study import Settings
from lamina.spec import Workload

FIXED_S, LAYER_S = 2.0, 0.3
"""Seconds that a bench takes, and each layer in it; without as much time there is none."""


def explained(context: Context, settings: Settings) -> tuple[str, ...]:
    """Headlines about the network, layer by layer, at a precision and layout.

    None if the stage has too little time, or if the network cannot be measured.
    """
    config, subject = context.config, context.subject
    layers = sum(1 for module in subject.dense.modules() if not any(True for _ in module.children()))
    if not context.budget.covers(FIXED_S + LAYER_S * layers):
        return ()
    phases = ["forward", "backward_data", "backward_weight"] if config.training else ["forward"]
    asked = {"batch": [config.batch], "precision": [settings.precision], "layout": [settings.layout]}
    how = {"phases": phases, "device": str(subject.device), "check": False, "seconds": 0.03}
    workload = Workload.model_validate(asked | how)
    try:
        command = f"study {context.run_id}"
        with measure.alone():
            benched = bench(context.target, workload, context.store, cache=context.cache, command=command, resume=True)
        context.note(f"layers at {settings.precision}, {settings.layout} are in run {benched.id}")
        return tuple(one.claim for one in explain(context.store, benched.id).headlines)
    except LaminaError as error:
        context.note(f"not explained: {run.one_line(error)}")
        return ()
