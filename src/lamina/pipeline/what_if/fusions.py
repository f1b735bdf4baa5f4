"""Fusion as a what-if: layers with what follows them in one kernel, and the bounds of what that can bring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from lamina import accelerate, build
from lamina.accelerate.methods.fusion import Fusion
from lamina.accelerate.methods.fusion.convert import replace as fused
from lamina.accelerate.methods.fusion.convert import runs as fusible
from lamina.errors import UnsupportedError
from lamina.explain import predictions
from lamina.explain.predictions import Prediction
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.what_if import bypass
from lamina.pipeline.what_if.stage import Stage
from lamina.pipeline.what_if.swaps import Part, parts_of
from lamina.record import Counter, KernelRun, LayerRun, Roofs, WhatIf

WAYS: Mapping[str, Fusion] = {
    "triton": Fusion(impl="kernel"),
    "cublaslt": Fusion(impl="cublaslt"),
    "plain torch": Fusion(impl="reference"),
}
"""Ways to fuse, by name; the last is for machines without a GPU."""


def fusion(stage: Stage) -> Iterator[WhatIf]:
    """Linear layers and convolutions with their bias, activation and pooling in one kernel."""
    parts = _fusible(stage)
    if not parts:
        yield stage.refused("fusion", "fusion", "no Linear or Conv2d is followed by its activation in a Sequential")
        return
    measured = [one for one in stage.done.values() if one.change == "fusion"]
    stage.time_parts(
        "fusion", parts, lambda part: [f"{_kinds(part.module)} by {how}" for how in _fusers(stage, part.module)]
    )
    for part in stage.counted(parts):
        for how, make in _fusers(stage, part.module).items():

            def predict(phase: str, part: Part = part) -> Prediction:
                return stage.predicted(_fused_rows, stage.rows_of(part.layers, phase))

            for one in stage.swap("fusion", f"{_kinds(part.module)} by {how}", part, make, predict):
                measured.append(one)
                yield one
    fused_layers = [layer for part in parts for layer in part.layers]
    rows = [*stage.rows_of(fused_layers), stage.whole]
    prediction = stage.predicted(predictions.predict_fusion, rows)
    ways = {"the fastest way of each": lambda: _fastest(stage, parts, measured)}
    if stage.gpu and stage.point.layout == "nchw":
        ways["the fastest way of each, channels last"] = lambda: _channels_last(_fastest(stage, parts, measured))
    for how, make in (ways | _fusers(stage, stage.network.module, fused_layers)).items():
        yield from stage.swap_whole("fusion", f"{len(parts)} runs of layers by {how}", make, prediction)


def without_activations(stage: Stage) -> Iterator[WhatIf]:
    """The published upper bound of fusion: activations removed. It computes something else and is not compared."""
    calls = [
        call
        for call in stage.network.trace.calls
        if call.resolved.layer.kind == "activation" and stage.selects([call.resolved.name])
    ]
    gone = [call.module for call in calls if call.module is not None]
    if not gone or len(gone) < len(calls):
        said = "it has no activations" if not calls else "its activations are functions, which cannot be taken out"
        yield stage.refused("without_activations", "activations removed", said)
        return
    names = [name for name, module in stage.network.module.named_modules() if any(module is one for one in gone)]

    def bare() -> nn.Module:
        model = build.copied(stage.network.module)
        for name in names:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
        return model

    rows = [
        replace(row, kind="kept") if row.kind == "activation" and not stage.selects([row.layer]) else row
        for row in stage.base.rows
    ]
    prediction = stage.predicted(predictions.predict_without_activations, rows)
    yield from stage.swap_whole("without_activations", "activations removed", bare, prediction, check=False)


def l1_bypass(stage: Stage) -> Iterator[WhatIf]:
    """Triton kernels whose loads go past L1, against the same kernels whose loads do not.

    In fp32 also whole convolutions, forward and their weight gradient.
    """
    if not stage.gpu:
        yield stage.refused("l1_bypass", "loads by .cg", "needs a GPU: the CPU's caches have no such switch")
        return
    detail = "{} by triton, loads by .cg"
    parts = [
        Part(part.layers, fused(build.copied(part.module), Fusion(impl="kernel")), part.x, part.module)
        for part in _fusible(stage)
    ]
    stage.time_parts("l1_bypass", parts, lambda part: [detail.format(_kinds(part.dense or part.module))])
    for ours in stage.counted(parts):
        part = ours.dense
        assert isinstance(part, nn.Sequential)

        def predict(phase: str, part: nn.Sequential = part) -> Prediction:
            if isinstance(part[0], nn.Linear):
                return Prediction(1.0, "operands are copied straight to shared memory, past L1 as it is")
            return Prediction(None, "no counters of these kernels: their L1 hit rate is unknown")

        yield from stage.swap(
            "l1_bypass",
            detail.format(_kinds(part)),
            ours,
            lambda part=part: fused(build.copied(part), Fusion(impl="kernel", l1_bypass=True)),  # type: ignore[misc]
            predict,
        )
    if stage.point.precision == "fp32":
        yield from bypass.convolutions(stage)


def _fused_rows(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """`predict_fusion` for rows of several phases, one after the other."""
    found = [
        predictions.predict_fusion([row for row in rows if row.phase == phase], kernels, counters, roofs)
        for phase in dict.fromkeys(row.phase for row in rows)
    ]
    if not found or any(one.us is None for one in found):
        return Prediction(None, next((one.rule for one in found if one.us is None), "none of these layers has a row"))
    return Prediction(sum(one.us or 0.0 for one in found), "; ".join(one.rule for one in found))


def _fusible(stage: Stage) -> list[Part]:
    """Every run of layers that fusion makes one of, if any of them is selected."""
    groups = [
        tuple(f"{name}.{list(module._modules)[place]}".lstrip(".") for place in places)
        for name, module in stage.network.module.named_modules()
        if isinstance(module, nn.Sequential)
        for places in fusible(module, Fusion())
    ]
    return parts_of(stage.network, [group for group in groups if stage.selects(group)])


def _fusers(stage: Stage, module: nn.Module, only: Collection[str] | None = None) -> dict[str, Callable[[], nn.Module]]:
    """Implementations of a fused part, or of the whole network with fused layers of the names in ``only``."""

    def by(config: Fusion) -> Callable[[], nn.Module]:
        where = None if only is None else lambda name, _: name in only
        return lambda: accelerate.convert(build.copied(module), config, where)[0]

    if not stage.gpu:
        return {"plain torch": by(WAYS["plain torch"])}
    linear = any(isinstance(one, nn.Linear) for one in module.modules())
    ways = {how: by(config) for how, config in WAYS.items() if how == "triton" or (how == "cublaslt" and linear)}
    if only is not None and stage.partial:
        return ways  # the compiler takes the whole network
    return ways | {"torch.compile": lambda: _compiled(module)}


def _fastest(stage: Stage, parts: Sequence[Part], measured: Sequence[WhatIf]) -> nn.Module:
    """The network with each part in the way that was measured to be its fastest, left as it is where none was."""
    model = build.copied(stage.network.module)
    phase = WHOLE_STEP if stage.network.backward else "forward"
    fused_parts = 0
    for part in parts:
        gains = {
            how: one.measured_gain
            for one in measured
            for how in WAYS
            if (one.layer, one.phase) == (part.name, phase) and f" by {how}" in one.detail and one.measured_gain
        }
        how = max(gains, key=lambda name: gains[name], default="")
        if not how or gains[how] <= 0:
            continue
        model, _ = accelerate.convert(model, WAYS[how], lambda name, _, part=part: name in part.layers)  # type: ignore[misc]
        fused_parts += 1
    if not fused_parts:
        raise UnsupportedError("no part of it was faster fused")
    return model


def _channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _compiled(module: nn.Module) -> nn.Module:
    # Parts share the code of Sequential.forward, and a code object is compiled only a few times.
    torch.compiler.reset()
    compiled: nn.Module = torch.compile(build.copied(module))  # type: ignore[assignment]
    return compiled


def _kinds(module: nn.Module) -> str:
    """The steps of a part: ``linear + bias + relu``."""
    words: Mapping[str, str] = {"conv2d": "convolution", "maxpool2d": "max pooling"}
    said = []
    for part in module:  # type: ignore[attr-defined]
        name = type(part).__name__.lower()
        said.append(words.get(name, name))
        if getattr(part, "bias", None) is not None:
            said.append("bias")
    return " + ".join(said)
