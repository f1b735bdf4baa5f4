"""Matrix kernels that leave the tensor cores idle."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from lamina.explain import metrics
from lamina.explain.launches import mean
from lamina.explain.roofline import attainable_us
from lamina.explain.view import BY_NAME, FACT, STAKE, View
from lamina.explain.wording import name
from lamina.record import Finding, LayerRun
from lamina.spec import ITEM_BYTES

IDLE = 2.0
"""Percent of their peak below which tensor cores do nothing of the matrix product itself."""
VECTOR = 16
"""Bytes that a tensor core kernel loads at once: sizes that are no multiple cannot feed it."""
INSTEAD = {"fp32": ("tf32", "bf16")}
"""Precisions without tensor cores, and the nearest ones with."""
ORDINARY = ("simt", "sgemm", "f32f32_f32f32_f32", "ffma", "dgemm")
"""Parts of names of matrix kernels for ordinary multiply-add units."""


def tensor_cores_idle(view: View) -> Iterator[Finding]:
    """Phases that matter whose matrix kernels use no tensor cores, where they could."""
    for row in filter(view.matters, view.rows):
        matrix = [one for one in view.launches[row.key] if one.kind == "matrix"]
        part = view.part(row, matrix)
        used = mean(matrix, metrics.TENSOR)
        idle = used < IDLE if used is not None else bool(matrix) and all(_ordinary(one.kernel.name) for one in matrix)
        if not idle or part < view.share[row] / 2 or row.precision == "fp64":
            continue
        claim = f"{name(row)} uses no tensor cores in {row.precision}"
        evidence: dict[str, float | str | None] = {"tensor cores": used, "share of step": part}
        if row.precision in INSTEAD:
            gains = {
                other: gain
                for other in INSTEAD[row.precision]
                if (gain := _gain(view, row, row.precision, other)) is not None
            }
            said = " and ".join(f"{other} {1 / (1 - gain):.1f} times" for other, gain in gains.items())
            claim += f"; at the roofs they would make it faster by: {said}" if said else "; tf32 or bf16 would"
            evidence |= {f"gain in {other}": gain for other, gain in gains.items()}
            evidence[STAKE] = part * max(gains.values(), default=0.0)
        else:
            odd = _misaligned(row)
            size = VECTOR // ITEM_BYTES[row.precision]
            claim += (
                f": {', '.join(map(str, odd))} should be a multiple of {size}"
                if odd
                else ": its sizes would permit it, so the library was not allowed to or chose otherwise"
            )
            evidence |= {"alignment": float(size), STAKE: part * (_gain(view, row, "fp32", row.precision) or 0.0)}
        yield view.finding("tensor cores idle", claim, evidence, [row], FACT if used is not None else BY_NAME, row)


def _gain(view: View, row: LayerRun, before: str, after: str) -> float | None:
    """Part of the time that the roofline of one precision would save over another's; elements never grow."""
    if view.roofs is None:
        return None
    now = attainable_us(row, view.roofs, before)
    then = attainable_us(row, view.roofs, after, min(ITEM_BYTES[after] / ITEM_BYTES[row.precision], 1.0))
    return max(1 - then / now, 0.0) if now and then is not None else None


def _misaligned(row: LayerRun) -> list[int]:
    """Channels or features that are no multiple of what a tensor core kernel loads at once."""
    least = VECTOR // ITEM_BYTES[row.precision]
    axis = 1 if row.kind == "convolution" else -1
    sizes = [shape[axis] for shape in (*row.inputs[:1], row.output) if len(shape) > 1]
    return [size for size in dict.fromkeys(sizes) if gcd(size, least) != least]


def _ordinary(kernel: str) -> bool:
    return any(part in kernel for part in ORDINARY)
