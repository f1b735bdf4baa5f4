"""Rows as a profile of ConvNeXt-tiny leaves them: 392 phases of 155 layers in equal blocks, and the whole step."""

from collections.abc import Iterator
from math import prod

from lamina.record import KernelRun, LayerRun, Timing

from .records import ROOFS

GPU_US, STEP_US = 7_200.0, 17_900.0
"""Time of its layers on the GPU, and of its step by the wall clock."""
STAGES = ((3, 96, 56), (3, 192, 28), (9, 384, 14), (3, 768, 7))
"""Blocks, channels, height and width of each stage."""


def convnext(batch: int = 8, step_us: float | None = STEP_US) -> list[LayerRun]:
    """The rows of one setting, with a whole step unless ``step_us`` is ``None``."""
    rows = list(_rows(batch))
    scale = GPU_US / sum(_us(row) for row in rows if row.outcome == "ok")
    made = [_timed(row, scale * _us(row)) if row.outcome == "ok" else row for row in rows]
    if step_us is not None:
        step = _row("convnext_tiny", "network", 200, "step", batch, (3, 224, 224), (1000,), 0, None)
        made.append(_timed(step, step_us, "wall"))
    return made


def kernels(rows: list[LayerRun]) -> list[KernelRun]:
    """Three kernels of each phase, which take its time together."""
    return [
        KernelRun(row.key, number, f"void {row.kind}_kernel_{number}<float>(int)", (64, 1, 1), (128, 1, 1), 32, 0, us)
        for row in rows
        if row.timing and row.phase != "step"
        for number, us in enumerate([row.timing.median_us / 3] * 3)
    ]


def _layers() -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...], int, int]]:
    """Name, type, input, output, weights and FLOPs of each layer, for one sample."""
    yield "stem.0", "convolution", (3, 224, 224), (96, 56, 56), 96 * 48, 2 * 96 * 48 * 56**2
    yield "stem.1", "layer_norm", (96, 56, 56), (96, 56, 56), 192, 8 * 96 * 56**2
    for stage, (blocks, width, size) in enumerate(STAGES):
        space = size * size
        if stage:
            before = STAGES[stage - 1][1:]
            shape, name = (before[0], before[1], before[1]), f"stages.{stage}.downsample"
            yield f"{name}.0", "layer_norm", shape, shape, 2 * before[0], 8 * prod(shape)
            weights = 4 * before[0] * width
            yield f"{name}.1", "convolution", shape, (width, size, size), weights, 2 * weights * space
        flat, wide = (size, size, width), (size, size, 4 * width)
        for block in range(blocks):
            name, weights = f"stages.{stage}.blocks.{block}", 4 * width * width
            image = (width, size, size)
            yield f"{name}.conv_dw", "convolution", image, image, 49 * width, 98 * width * space
            yield f"{name}.norm", "layer_norm", flat, flat, 2 * width, 8 * width * space
            yield f"{name}.mlp.fc1", "linear", flat, wide, weights, 2 * weights * space
            yield f"{name}.mlp.act", "GELU", wide, wide, 0, 0
            yield f"{name}.mlp.fc2", "linear", wide, flat, weights, 2 * weights * space
            yield f"{name}.reshape", "reshape", (width,), (width, 1, 1), width, 0
            yield f"{name}.mul", "multiply", image, image, 0, width * space
            yield f"{name}.add", "add", image, image, 0, width * space
    yield "head.global_pool.pool", "adaptive_pooling", (768, 7, 7), (768, 1, 1), 0, 768 * 49
    yield "head.norm", "layer_norm", (768, 1, 1), (768, 1, 1), 1536, 8 * 768
    yield "head.fc", "linear", (768,), (1000,), 769_000, 2 * 768_000


def _rows(batch: int) -> Iterator[LayerRun]:
    for place, (name, kind, inputs, output, weights, flops) in enumerate(_layers()):
        phases = ["forward"] + ["backward_data"] * (kind != "add") + ["backward_weight"] * bool(weights)
        for phase in phases:
            counted = None if kind in ("GELU", "reshape") else flops * batch
            skipped = "its input needs no gradient"
            lost = phase == "backward_data" and (place == 0 or kind == "reshape")
            yield _row(name, kind, place, phase, batch, inputs, output, weights, counted, skipped if lost else "")


def _row(
    name: str,
    kind: str,
    place: int,
    phase: str,
    batch: int,
    inputs: tuple[int, ...],
    output: tuple[int, ...],
    weights: int,
    flops: int | None,
    reason: str = "",
) -> LayerRun:
    return LayerRun(
        layer=name,
        kind=kind,
        place=place,
        phase=phase,
        impl="dense",
        precision="bf16",
        layout="nchw",
        batch=batch,
        device=ROOFS.device,
        inputs=((batch, *inputs),),
        output=(batch, *output),
        parameters=weights,
        flops=flops,
        bytes=2 * (batch * (prod(inputs) + prod(output)) + weights),
        outcome="skipped" if reason else "ok",
        reason=reason,
        rel_error=None if reason else 2e-3,
    )


def _us(row: LayerRun) -> float:
    """A time far from the roofline for normalisations and depthwise convolutions, near it for all else."""
    best = max((row.flops or 0) / ROOFS.gemm_gflops["bf16"], (row.bytes or 0) / ROOFS.copy_gbs) / 1e3
    slow = 8 if row.kind == "layer_norm" or row.layer.endswith("conv_dw") else 1.5
    return 2.5 + slow * best


def _timed(row: LayerRun, us: float, clock: str = "cupti") -> LayerRun:
    timing = Timing(clock, "warm", us, 0.99 * us, 1.02 * us, 30, kernels=3)
    return LayerRun(**{**vars(row), "timing": timing})
