"""Matrix kernels that do not use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from lamina.explain import metrics
from lamina.explain.launches import mean
from lamina.explain.roofline import attainable_us
from lamina.explain.view import BY_NAME, FACT, SAVING, View
from lamina.explain.wording import name
from lamina.record import Finding, LayerRun
from lamina.spec import ITEM_BYTES

IDLE = 2.0
"""Tensor core utilization, in percent, below which they do not compute the matrix product."""
VECTOR = 16
"""Alignment in bytes that tensor core kernels need: their vector loads have this size."""
ALTERNATIVES = {"fp32": ("tf32", "bf16")}
"""Precisions without tensor cores, and the nearest ones that have them."""
FMA_KERNELS = ("simt", "sgemm", "f32f32_f32f32_f32", "ffma", "dgemm")
"""Substrings of the names of matrix kernels that run on FMA units."""


def tensor_cores_idle(view: View) -> Iterator[Finding]:
    """Significant phases whose matrix kernels do not use tensor cores but could."""
    for row in filter(view.matters, view.rows):
        matrix = [one for one in view.launches[row.key] if one.kind == "matrix"]
        part = view.fraction(row, matrix)
        used = mean(matrix, metrics.TENSOR)
        idle = used < IDLE if used is not None else bool(matrix) and all(_uses_fma(one.kernel.name) for one in matrix)
        if not idle or part < view.share[row] / 2 or row.precision == "fp64":
            continue
        claim = f"{name(row)} does not use tensor cores in {row.precision}"
        evidence: dict[str, float | str | None] = {"tensor cores": used, "share of step": part}
        if row.precision in ALTERNATIVES:
            gains = {
                other: gain
                for other in ALTERNATIVES[row.precision]
                if (gain := _gain(view, row, row.precision, other)) is not None
            }
            speedups = " and ".join(f"{1 / (1 - gain):.1f}x in {other}" for other, gain in gains.items())
            claim += f"; roofline speedup {speedups}" if speedups else "; tf32 and bf16 do"
            evidence |= {f"gain in {other}": gain for other, gain in gains.items()}
            evidence[SAVING] = part * max(gains.values(), default=0.0)
        else:
            odd = _misaligned(row)
            size = VECTOR // ITEM_BYTES[row.precision]
            claim += (
                f": sizes {', '.join(map(str, odd))} are not multiples of {size}"
                if odd
                else ": its sizes are aligned, so the library chose another kernel or was not permitted to use them"
            )
            evidence |= {"alignment": float(size), SAVING: part * (_gain(view, row, "fp32", row.precision) or 0.0)}
        yield view.finding("tensor cores idle", claim, evidence, [row], FACT if used is not None else BY_NAME, row)


def _gain(view: View, row: LayerRun, before: str, after: str) -> float | None:
    """Fraction of the roofline time that precision ``after`` saves over ``before``; elements never grow."""
    if view.roofs is None:
        return None
    now = attainable_us(row, view.roofs, before)
    then = attainable_us(row, view.roofs, after, min(ITEM_BYTES[after] / ITEM_BYTES[row.precision], 1.0))
    return max(1 - then / now, 0.0) if now and then is not None else None


def _misaligned(row: LayerRun) -> list[int]:
    """Channels or features that are not a multiple of the alignment of tensor core kernels."""
    least = VECTOR // ITEM_BYTES[row.precision]
    axis = 1 if row.kind == "convolution" else -1
    sizes = [shape[axis] for shape in (*row.inputs[:1], row.output) if len(shape) > 1]
    return [size for size in dict.fromkeys(sizes) if gcd(size, least) != least]


def _uses_fma(kernel: str) -> bool:
    return any(part in kernel for part in FMA_KERNELS)
