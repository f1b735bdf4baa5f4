"""What else can be changed about a network: its layout, precision, launches and algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from lamina import build, measure, run
from lamina.errors import DeviceLostError
from lamina.explain import predictions
from lamina.explain.predictions import Prediction
from lamina.pipeline.profile.point import Options
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.what_if.stage import Baseline, Elsewhere, Stage
from lamina.pipeline.what_if.swaps import Part, Swapped, parts_of
from lamina.record import Counter, KernelRun, LayerRun, Roofs, WhatIf
from lamina.spec import Method
from lamina.store import open_store

NEXT = {"fp32": "tf32", "tf32": "bf16"}
"""The precision that each is changed to."""

ALGORITHMS = ("gemm", "fft", "winograd")

SOME_ROWS_FAILED = 1
"""Exit code of a profile in which a phase has no time."""


def channels_last(stage: Stage) -> Iterator[WhatIf]:
    """Images whose channels lie together in memory."""
    if stage.point.layout == "nhwc":
        yield stage.refused("channels_last", "nchw -> nhwc", "it has that layout already")
        return
    point = replace(stage.point, layout="nhwc")
    yield from stage.moved("channels_last", "nchw -> nhwc", point, predictions.predict_channels_last)


def precision(stage: Stage) -> Iterator[WhatIf]:
    """The next narrower precision."""
    now = stage.point.precision
    if now not in NEXT:
        yield stage.refused("precision", now, f"only {' and '.join(NEXT)} are changed")
        return
    then = NEXT[now]
    if then == "tf32" and not stage.gpu:
        yield stage.refused("precision", f"{now} -> {then}", "needs a GPU: TF32 is what its tensor cores read")
        then = "bf16"

    def predict(
        rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
    ) -> Prediction:
        return predictions.predict_precision(rows, kernels, counters, roofs, then)

    point = replace(stage.point, precision=then)  # type: ignore[arg-type]
    yield from stage.moved("precision", f"{now} -> {then}", point, predict)


def cuda_graph(stage: Stage) -> Iterator[WhatIf]:
    """The whole step replayed as one CUDA graph; the kernels are the same, so their results are not compared."""
    if not stage.gpu:
        yield stage.refused("cuda_graph", "eager -> replay", "needs a GPU")
        return
    if stage.has("cuda_graph", "eager -> replay", stage.whole.layer):
        return
    before = stage.step()
    try:
        with stage.guarded(stage.whole.layer, "cuda_graph, eager -> replay"):
            found = Swapped(before, stage.time_step(stage.network.module, measure.clock("graph", stage.device)))
    except DeviceLostError:
        raise
    except Exception as refused:
        found = Swapped(before, reason=run.one_line(refused))
    prediction = stage.predicted(predictions.predict_cuda_graph, stage.base.rows)
    yield stage.record("cuda_graph", "eager -> replay", stage.whole.layer, WHOLE_STEP, found, prediction)


def algorithm(stage: Stage) -> Iterator[WhatIf]:
    """Other algorithms for convolutions, and the library's own choice by timing instead of by heuristics."""
    calls = {
        c.resolved.name: c
        for c in stage.network.trace.calls
        if c.resolved.layer.kind == "convolution" and c.module and stage.selects([c.resolved.name])
    }
    if not calls:
        yield stage.refused("algorithm", "algorithm", "none of its layers is a convolution")
        return
    parts = parts_of(stage.network, [(name,) for name in calls if name in _names(stage)])
    stage.time_parts("algorithm", parts, lambda _: [f"dense -> dense:{name}" for name in ALGORITHMS])
    for part in stage.counted(parts):
        for name in ALGORITHMS:

            def predict(phase: str, part: Part = part, name: str = name) -> Prediction:
                def rule(
                    rows: Sequence[LayerRun],
                    kernels: Sequence[KernelRun],
                    counters: Sequence[Counter],
                    roofs: Roofs | None,
                ) -> Prediction:
                    return predictions.predict_algorithm(rows, kernels, counters, roofs, name)

                return stage.predicted(rule, stage.rows_of(part.layers, phase))

            def make(part: Part = part, name: str = name) -> nn.Module:
                return build.dense(Method("dense", name), calls[part.name].resolved, part.module)

            yield from stage.swap("algorithm", f"dense -> dense:{name}", part, make, predict)
    yield from _tuned(stage)


def _tuned(stage: Stage) -> Iterator[WhatIf]:
    """The library's algorithms chosen by timing, against those chosen by its heuristics.

    A library remembers its choice for each shape as long as a process lives, so the other way runs in another one.
    """
    detail = "heuristics -> timed choice"
    if not stage.gpu or stage.elsewhere is None:
        reason = (
            "needs a GPU: the choice is cuDNN's" if not stage.gpu else "needs a process of its own: use the command"
        )
        yield stage.refused("algorithm", detail, reason)
        return
    if stage.has("algorithm", detail, stage.whole.layer):
        return
    options = replace(stage.options, autotune=not stage.options.autotune)
    other = _profiled_elsewhere(stage, stage.elsewhere, options, check=stage.workload.check and options.autotune)
    before, after = (other, stage.base) if stage.options.autotune else (stage.base, other)

    def predict(
        rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
    ) -> Prediction:
        if len(rows) > 1:
            return _sum_of_convolutions(rows, kernels, counters, roofs)
        peers = [row for row in before.rows if (row.kind, row.phase) == (rows[0].kind, rows[0].phase)]
        return predictions.predict_algorithm(rows, kernels, counters, roofs, peers=peers)

    kept = [row for row in before.rows if row.kind == "convolution" or row.phase == WHOLE_STEP]
    for one in replace(stage, base=before).paired("algorithm", detail, before.rows, after.rows, predict):
        if any((one.layer, one.phase) == (row.layer, row.phase) for row in kept):
            yield one


def _profiled_elsewhere(stage: Stage, elsewhere: Elsewhere, options: Options, check: bool = True) -> Baseline:
    """The point by a process of its own; without ``check`` where its results were compared with float64 before."""
    with TemporaryDirectory() as folder:
        place = str(Path(folder) / "lamina.db")
        command = [*elsewhere(stage.point, options, place), *(() if check else ("--no-check",))]
        measure.run_subprocess(command, accepted=(0, SOME_ROWS_FAILED))
        with open_store(place) as store:
            run_id = store.run("latest").id
            return Baseline(store.layers(run_id), store.kernels(run_id), (), stage.base.roofs)


def _sum_of_convolutions(
    rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
) -> Prediction:
    """The whole step: each convolution as it is predicted alone, the rest as it is."""
    step = next((row.timing.median_us for row in rows if row.phase == WHOLE_STEP and row.timing), None)
    if step is None:
        return Prediction(None, "the whole step has no time")
    gone = 0.0
    for row in rows:
        if row.kind != "convolution" or row.timing is None:
            continue
        peers = [other for other in rows if (other.kind, other.phase) == (row.kind, row.phase)]
        found = predictions.predict_algorithm([row], kernels, counters, roofs, peers=peers)
        gone += row.timing.median_us - (found.us if found.us is not None else row.timing.median_us)
    return Prediction(max(step - gone, 0.0), "convolutions as predicted one by one, the rest as it is")


def _names(stage: Stage) -> set[str]:
    return {name for name, _ in stage.network.module.named_modules()}
