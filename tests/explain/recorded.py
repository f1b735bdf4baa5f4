"""Kernels and counters of AlexNet's first layers and classifier, as an H200 counted them, and planted ones."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lamina.explain.findings import views
from lamina.explain.view import View
from lamina.record import Counter, Finding, KernelRun, Key, LayerRun, Roofs, Timing

H200 = Roofs(
    device="NVIDIA H200",
    date="2026-01-01T00:00:00+00:00",
    threads=8,
    versions={"torch": "2"},
    copy_gbs=4000.0,
    read_gbs=4000.0,
    gemm_gflops={"fp32": 50_000.0, "tf32": 400_000.0, "bf16": 800_000.0},
    launch_us=2.0,
    enqueue_us=4.0,
)
BATCH = 128
SHAPES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], int]] = {  # kind, input, output, weights
    "features.0": ("convolution", (3, 224, 224), (64, 55, 55), 64 * 3 * 11 * 11),
    "features.1": ("activation", (64, 55, 55), (64, 55, 55), 0),
    "features.2": ("pooling", (64, 55, 55), (64, 27, 27), 0),
    "features.3": ("convolution", (64, 27, 27), (192, 27, 27), 192 * 64 * 5 * 5),
    "classifier.1": ("linear", (9216,), (4096,), 9216 * 4096),
    "classifier.2": ("activation", (4096,), (4096,), 0),
    "classifier.4": ("linear", (4096,), (4096,), 4096 * 4096),
}


@cache
def document() -> dict[str, Any]:
    """The extract itself."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("alexnet_h200.json").read_text(encoding="utf-8"))
    return found


def key(layer: str, phase: str = "forward", precision: str | None = None, batch: int = BATCH) -> Key:
    """Convolutions ran in TF32, linear layers in fp32."""
    precision = precision or ("fp32" if layer.startswith("classifier") else "tf32")
    return Key(layer, phase, "dense", precision, "nchw", batch)


def row(of: Key, us: float, **changes: Any) -> LayerRun:
    """A layer's row; layers that the extract has not are activations."""
    kind, input_, output, weights = SHAPES.get(of.layer, ("activation", (64,), (64,), 0))
    elements = [of.batch * _count(shape) for shape in (input_, output)]
    flops = 2 * weights * elements[1] // (output[0] if kind == "convolution" else output[-1]) if weights else 0
    made = LayerRun(
        layer=of.layer,
        kind=kind,
        place=list(SHAPES).index(of.layer) if of.layer in SHAPES else 99,
        phase=of.phase,
        impl=of.impl,
        precision=of.precision,
        layout=of.layout,
        batch=of.batch,
        device=H200.device,
        inputs=((of.batch, *input_),),
        output=(of.batch, *output),
        parameters=weights,
        flops=flops,
        bytes=4 * (sum(elements) + weights),
        outcome="ok",
        timing=Timing("cupti", "warm", us, 0.99 * us, 1.01 * us, 30),
    )
    return replace(made, **changes)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def whole(us: float, rows: Sequence[LayerRun], clock: str = "events") -> LayerRun:
    """The row of the whole step, timed without a profiler."""
    timing = Timing(clock, "warm", us, 0.995 * us, 1.005 * us, 30)
    return replace(rows[0], layer="alexnet", kind="network", phase="step", flops=None, bytes=None, timing=timing)


def kernel(
    of: Key, us: float, name: str = "void at::some_kernel<float>(int)", invocation: int = 0, **changes: Any
) -> KernelRun:
    made = KernelRun(of, invocation, name, (132, 1, 1), (128, 1, 1), 32, 0, us)
    return replace(made, **changes)


def counted(of: KernelRun, values: Mapping[str, float | None]) -> list[Counter]:
    return [Counter(of.key, of.invocation, metric, value, "%") for metric, value in values.items()]


Recorded = tuple[list[LayerRun], list[KernelRun], list[Counter]]


def recorded(*only: str) -> Recorded:
    """Rows, kernels and counters of the extract, of some layers or of all."""
    kernels: list[KernelRun] = []
    counters: list[Counter] = []
    for one in document()["kernels"]:
        if only and one["layer"] not in only:
            continue
        of = key(one["layer"], one["phase"])
        made = KernelRun(
            of,
            sum(it.key == of for it in kernels),
            one["name"],
            tuple(one["grid"]),
            tuple(one["block"]),
            one["registers"],
            one["shared_bytes"],
            one["us"],
        )
        kernels.append(made)
        units = document()["units"]
        counters += [Counter(of, made.invocation, m, value, units[m]) for m, value in one["counters"].items()]
    keys = dict.fromkeys(it.key for it in kernels)
    return [row(of, sum(it.duration_us for it in kernels if it.key == of)) for of in keys], kernels, counters


def view(
    rows: Sequence[LayerRun],
    kernels: Iterable[KernelRun] = (),
    counters: Iterable[Counter] = (),
    roofs: Roofs | None = H200,
) -> View:
    """The one setting of some records."""
    (made,) = views(rows, roofs, kernels, counters)
    return made


def names(found: Iterable[Finding]) -> list[tuple[str | None, str | None]]:
    return [(it.layer, it.phase) for it in found]
