"""What can be changed about a network: each change executed, beside what records predicted of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from lamina import accelerate, build, measure, run
from lamina.accelerate.fusion import Fusion
from lamina.accelerate.fusion.convert import replace as fused
from lamina.accelerate.fusion.convert import runs as fusible
from lamina.build import Target
from lamina.build.data import Dataset
from lamina.errors import LaminaError, UnsupportedError
from lamina.explain import predictions
from lamina.explain.predictions import Prediction
from lamina.pipeline.prepared import Prepared
from lamina.pipeline.profiled import Options, profile_point
from lamina.pipeline.rows import WHOLE_STEP
from lamina.pipeline.swaps import CLOCKS, Part, Swapped, parts_of, swap_part, whole, whole_error
from lamina.pipeline.watch import unwatched
from lamina.record import Counter, KernelRun, LayerRun, Roofs, WhatIf
from lamina.spec import Method, Point, Workload

Mark = tuple[str, str, str, str, str, int]
Predict = Callable[[Sequence[LayerRun], Sequence[KernelRun], Sequence[Counter], Roofs | None], Prediction]

NEXT = {"fp32": "tf32", "tf32": "bf16"}
"""The precision that each is changed to."""

ALGORITHMS = ("gemm", "fft", "winograd")


def mark(one: WhatIf) -> Mark:
    """What makes a what-if unique within a run."""
    return one.change, one.detail, one.layer, one.phase, one.precision, one.batch


@dataclass(frozen=True)
class Baseline:
    """A point as it is: what predictions start from."""

    rows: tuple[LayerRun, ...]
    kernels: tuple[KernelRun, ...]
    counters: tuple[Counter, ...]
    roofs: Roofs | None


@dataclass(frozen=True)
class Stage:
    """One point of a network, ready to be changed; ``done`` are the what-ifs that are there already."""

    target: Target
    workload: Workload
    point: Point
    options: Options
    data: Dataset | None
    device: torch.device
    device_name: str
    network: Prepared
    base: Baseline
    done: frozenset[Mark] = frozenset()

    @property
    def whole(self) -> LayerRun:
        """The row of the whole step.

        Raises:
            UnsupportedError: the network did not run.
        """
        row = next((row for row in self.base.rows if row.phase == WHOLE_STEP), None)
        if row is None or row.timing is None:
            raise UnsupportedError(f"the network itself has no time: {row.reason if row else 'it was not measured'}")
        return row

    @property
    def gpu(self) -> bool:
        """Whether there is one."""
        return self.device.type == "cuda"

    @property
    def repeat(self) -> measure.Repeat:
        """How often parts and the whole are timed."""
        if self.workload.repeat is not None:
            return measure.Repeat(self.workload.repeat, self.workload.repeat, min_time_s=0, max_time_s=float("inf"))
        return measure.Repeat(min_time_s=min(0.1, self.workload.seconds), max_time_s=self.workload.seconds)

    def rows_of(self, layers: Sequence[str], phase: str = WHOLE_STEP) -> list[LayerRun]:
        """The rows of some layers, of one phase; their whole ``step`` is all their phases."""
        return [
            row
            for row in self.base.rows
            if row.layer in layers and row.phase != WHOLE_STEP and phase in (row.phase, WHOLE_STEP)
        ]

    def predicted(self, predict: Predict, rows: Sequence[LayerRun]) -> Prediction:
        """A prediction as the share of the rows' own time, which other clocks see otherwise."""
        found = predict(rows, self.base.kernels, self.base.counters, self.base.roofs)
        of = [row for row in rows if row.phase == WHOLE_STEP] or rows
        before = sum(row.timing.median_us for row in of if row.timing)
        return Prediction(found.us / before if found.us is not None and before else None, found.rule)

    def record(
        self, change: str, detail: str, layer: str, phase: str, found: Swapped, prediction: Prediction
    ) -> WhatIf:
        """A what-if from what was measured and the share of its time that was predicted to stay."""
        detail += " (channels last)" if self.point.layout == "nhwc" else ""
        us = None if prediction.us is None else prediction.us * found.before.median_us
        return WhatIf(
            change, detail, layer, phase, self.point.precision, self.network.batch, found.before, us, prediction.rule,
            found.after, found.rel_error, found.reason,
        )  # fmt: skip

    def refused(self, change: str, detail: str, reason: str) -> WhatIf:
        """A change of the whole network that was not executed."""
        row = self.whole
        assert row.timing is not None
        nothing = Prediction(None, "not executed")
        return self.record(change, detail, row.layer, WHOLE_STEP, Swapped(row.timing, reason=reason), nothing)

    def has(self, change: str, detail: str, layer: str, phase: str = WHOLE_STEP) -> bool:
        """Whether a what-if is there already."""
        detail += " (channels last)" if self.point.layout == "nhwc" else ""
        return (change, detail, layer, phase, self.point.precision, self.network.batch) in self.done

    def swap(
        self, change: str, detail: str, part: Part, after: Callable[[], nn.Module], predict: Callable[[str], Prediction]
    ) -> Iterator[WhatIf]:
        """A part computed in another way, phase by phase."""
        phases = ["forward", WHOLE_STEP] if self.network.backward else ["forward"]
        if all(self.has(change, detail, part.name, phase) for phase in phases):
            return
        found = swap_part(part, after, self.point.precision, self.network.backward, self.workload.check, self.repeat)
        for phase, swapped in found.items():
            yield self.record(change, detail, part.name, phase, swapped, predict(phase))

    def swap_whole(
        self, change: str, detail: str, after: Callable[[], nn.Module], prediction: Prediction, check: bool = True
    ) -> Iterator[WhatIf]:
        """The whole network with other parts; both steps are timed here, one after the other."""
        if self.has(change, detail, self.whole.layer):
            return
        clock = measure.clock(CLOCKS[self.device.type][1], self.device)
        gradients = self.target.input_gradients
        before = whole(self.network, self.network.module, clock, gradients, self.repeat)
        try:
            module = after()
            error = None
            if check and self.workload.check:
                error = whole_error(self.network, module, self.point.precision)
            found = Swapped(before, whole(self.network, module, clock, gradients, self.repeat), error)
        except (RuntimeError, LaminaError) as refused:
            found = Swapped(before, reason=run.one_line(refused))
        yield self.record(change, detail, self.whole.layer, WHOLE_STEP, found, prediction)

    def moved(
        self, change: str, detail: str, point: Point, options: Options, predict: Predict, kinds: Sequence[str] = ()
    ) -> Iterator[WhatIf]:
        """The whole network at another point: every phase of every layer, or of those kinds, and the step."""
        if self.has(change, detail, self.whole.layer):
            return
        found = profile_point(
            self.target, self.workload, point, options, self.data, self.device, self.device_name, unwatched
        )
        after = {(row.layer, row.phase): row for row in found.rows}
        for row in self.base.rows:
            if row.timing is None or (kinds and row.kind not in kinds and row.phase != WHOLE_STEP):
                continue
            new = after.get((row.layer, row.phase))
            reason = "" if new and new.timing else new.reason if new else "this phase does not run there"
            swapped = Swapped(row.timing, new.timing if new else None, new.rel_error if new else None, reason)
            rows = self.base.rows if row.phase == WHOLE_STEP else [row]
            yield self.record(change, detail, row.layer, row.phase, swapped, self.predicted(predict, rows))


def fusion(stage: Stage) -> Iterator[WhatIf]:
    """Linear layers and convolutions with their bias, activation and pooling in one kernel."""
    parts = _fusible(stage)
    if not parts:
        yield stage.refused("fusion", "fusion", "no Linear or Conv2d is followed by its activation in a Sequential")
        return
    for part in parts:
        for how, make in _fusers(stage, part.module).items():

            def predict(phase: str, part: Part = part) -> Prediction:
                return stage.predicted(_fused_rows, stage.rows_of(part.layers, phase))

            yield from stage.swap("fusion", f"{_kinds(part.module)} by {how}", part, make, predict)
    rows = [*stage.rows_of([layer for part in parts for layer in part.layers]), stage.whole]
    prediction = stage.predicted(predictions.predict_fusion, rows)
    for how, make in _fusers(stage, stage.network.module).items():
        yield from stage.swap_whole("fusion", f"{len(parts)} runs of layers by {how}", make, prediction)


def without_activations(stage: Stage) -> Iterator[WhatIf]:
    """The published upper bound of fusion: activations removed. It computes something else and is not compared."""
    calls = [call for call in stage.network.trace.calls if call.resolved.layer.kind == "activation"]
    gone = [call.module for call in calls if call.module is not None]
    if not gone or len(gone) < len(calls):
        said = "it has no activations" if not calls else "its activations are functions, which cannot be taken out"
        yield stage.refused("without_activations", "activations removed", said)
        return
    names = [name for name, module in stage.network.module.named_modules() if any(module is one for one in gone)]

    def bare() -> nn.Module:
        model = copy.deepcopy(stage.network.module)
        for name in names:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
        return model

    prediction = stage.predicted(predictions.predict_without_activations, stage.base.rows)
    yield from stage.swap_whole("without_activations", "activations removed", bare, prediction, check=False)


def l1_bypass(stage: Stage) -> Iterator[WhatIf]:
    """Triton kernels whose loads go past L1, against the same kernels whose loads do not."""
    if not stage.gpu:
        yield stage.refused("l1_bypass", "loads by .cg", "needs a GPU: the CPU's caches have no such switch")
        return
    for part in _fusible(stage):
        ours = Part(part.layers, fused(copy.deepcopy(part.module), Fusion(impl="kernel")), part.x)

        def predict(phase: str, part: Part = part) -> Prediction:
            if isinstance(part.module[0], nn.Linear):  # type: ignore[index]
                return Prediction(1.0, "operands are copied straight to shared memory, past L1 as it is")
            return Prediction(None, "no counters of these kernels: their L1 hit rate is unknown")

        yield from stage.swap(
            "l1_bypass",
            f"{_kinds(part.module)} by triton, loads by .cg",
            ours,
            lambda part=part: fused(copy.deepcopy(part.module), Fusion(impl="kernel", l1_bypass=True)),  # type: ignore[misc]
            predict,
        )


def channels_last(stage: Stage) -> Iterator[WhatIf]:
    """Images whose channels lie together in memory."""
    if stage.point.layout == "nhwc":
        yield stage.refused("channels_last", "nchw -> nhwc", "it has that layout already")
        return
    point = replace(stage.point, layout="nhwc")
    yield from stage.moved("channels_last", "nchw -> nhwc", point, stage.options, predictions.predict_channels_last)


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
    yield from stage.moved("precision", f"{now} -> {then}", point, stage.options, predict)


def cuda_graph(stage: Stage) -> Iterator[WhatIf]:
    """The whole step replayed as one CUDA graph; the kernels are the same, so their results are not compared."""
    if not stage.gpu:
        yield stage.refused("cuda_graph", "eager -> replay", "needs a GPU")
        return
    if stage.has("cuda_graph", "eager -> replay", stage.whole.layer):
        return
    gradients = stage.target.input_gradients
    eager, graph = (measure.clock(name, stage.device) for name in ("events", "graph"))
    before = whole(stage.network, stage.network.module, eager, gradients, stage.repeat)
    try:
        found = Swapped(before, whole(stage.network, stage.network.module, graph, gradients, stage.repeat))
    except (RuntimeError, LaminaError) as refused:
        found = Swapped(before, reason=run.one_line(refused))
    prediction = stage.predicted(predictions.predict_cuda_graph, stage.base.rows)
    yield stage.record("cuda_graph", "eager -> replay", stage.whole.layer, WHOLE_STEP, found, prediction)


def algorithm(stage: Stage) -> Iterator[WhatIf]:
    """Other algorithms for convolutions, and the library's own choice by timing instead of by heuristics."""
    calls = {c.name: c for c in stage.network.trace.calls if c.resolved.layer.kind == "convolution" and c.module}
    if not calls:
        yield stage.refused("algorithm", "algorithm", "it has no convolutions")
        return
    for part in parts_of(stage.network, [(name,) for name in calls if name in _names(stage)]):
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
    """The library's algorithms chosen by timing, against those chosen by its heuristics."""
    if not stage.gpu:
        yield stage.refused("algorithm", "heuristics -> timed choice", "needs a GPU: the choice is cuDNN's")
        return
    base = stage
    if stage.options.autotune:
        options = replace(stage.options, autotune=False)
        found = profile_point(
            stage.target, stage.workload, stage.point, options, stage.data, stage.device, stage.device_name, unwatched
        )
        base = replace(stage, base=replace(stage.base, rows=found.rows, kernels=found.kernels, counters=()))

    def predict(
        rows: Sequence[LayerRun], kernels: Sequence[KernelRun], counters: Sequence[Counter], roofs: Roofs | None
    ) -> Prediction:
        if len(rows) > 1:
            return _sum_of_convolutions(rows, kernels, counters, roofs)
        peers = [row for row in base.base.rows if (row.kind, row.phase) == (rows[0].kind, rows[0].phase)]
        return predictions.predict_algorithm(rows, kernels, counters, roofs, peers=peers)

    options = replace(stage.options, autotune=True)
    yield from base.moved("algorithm", "heuristics -> timed choice", stage.point, options, predict, ("convolution",))


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
    """Every run of layers that fusion makes one of."""
    groups = [
        tuple(f"{name}.{list(module._modules)[place]}".lstrip(".") for place in places)
        for name, module in stage.network.module.named_modules()
        if isinstance(module, nn.Sequential)
        for places in fusible(module, Fusion())
    ]
    return parts_of(stage.network, groups)


def _fusers(stage: Stage, module: nn.Module) -> dict[str, Callable[[], nn.Module]]:
    """Ways to fuse a part or a whole network, by name."""

    def by(config: Fusion) -> Callable[[], nn.Module]:
        return lambda: accelerate.convert(copy.deepcopy(module), config)[0]

    if not stage.gpu:
        return {"plain torch": by(Fusion(impl="reference"))}
    kinds = {type(one) for one in module.modules()}
    ways = {"triton": by(Fusion(impl="kernel"))}
    if nn.Linear in kinds:
        ways["cublaslt"] = by(Fusion(impl="cublaslt"))
    if module is stage.network.module:
        ways = {"the best of both": by(Fusion())} | ways
    return ways | {"torch.compile": lambda: _compiled(module)}


def _compiled(module: nn.Module) -> nn.Module:
    # Parts share the code of Sequential.forward, and a code object is compiled only a few times.
    torch.compiler.reset()
    compiled: nn.Module = torch.compile(copy.deepcopy(module))  # type: ignore[assignment]
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


def _names(stage: Stage) -> set[str]:
    return {name for name, _ in stage.network.module.named_modules()}
