"""The metrics of the dissertation (section 7.3.2): data reuse (DR) and memory access distance (MD) of a version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.accelerate.papers.circulant_ladder import mapping
from lamina.accelerate.papers.circulant_ladder.mapping import LIMIT, NATURAL, ROLES, Axes, Mapping, Phase, Sizes
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS, Plan, o2_layout

MULTIPLIES: dict[Plan, Callable[[Phase, Sizes], Mapping]] = {
    "table": mapping.table_multiply,
    "o1": mapping.o1,
    "o2": mapping.o2,
    "o2_argued": mapping.o2,
    "fusion": mapping.fusion,
}
"""The launch of the multiplication of each plan."""


@dataclass(frozen=True)
class Locality:
    """Of the multiplication of a version, within one thread block.

    Attributes:
        dr: the number of threads that use the same element of the first factor.
        md_read: the range of addresses that is read of the second factor, over the threads; 1 is ideal.
        md_written: the same of the result.
    """

    dr: int
    md_read: float
    md_written: float


def locality(impl: str, phase: Phase, sizes: Sizes) -> Locality:
    """DR and MD of a version, by its name in ``Circulant(impl=...)``, for ``n`` rows and ``p`` by ``q`` blocks."""
    plan, (m1, m2, m3) = IMPLS[impl].plan, ROLES[phase]
    launch, (first, second) = MULTIPLIES[plan](phase, sizes), NATURAL[phase]
    written: Axes = (m3, m2, m1, "f")
    if plan == "table":
        written = ("n", "p", "q", "f")
    elif plan == "o1":
        second = (m2, m1, "f")
    elif plan == "fusion":
        written = (m3, m2, "f")
    else:
        second = o2_layout(phase, plan)
    return Locality(
        mapping.reuse(launch, first),
        mapping.distance(launch, second, sizes),
        mapping.distance(launch, written, sizes),
    )


def equation_7_5(k: int, limit: int = LIMIT) -> int:
    """DR of O1: ``1024 / blockDim.x`` with ``blockDim.x = max(k, 32)``."""
    return limit // max(k, 32)


def equation_7_6(k: int, limit: int = LIMIT) -> int:
    """DR of O2 and of kernel fusion: ``1024 / k``."""
    return limit // k
