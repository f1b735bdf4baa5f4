"""Comparing like with like: what may differ between two rows of one layer and phase, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lamina.record.layer_run import LayerRun

Axis = Literal["impl", "precision", "layout", "batch", "device", "clock", "l2"]
AXES: tuple[Axis, ...] = ("impl", "precision", "layout", "batch", "device", "clock", "l2")
"""Everything besides layer and phase that tells rows apart."""

Setting = tuple[tuple[Axis, str | None], ...]
"""Values of some axes, in the order of ``AXES``: one way in which a network was measured."""

Verdict = Literal["faster", "slower", "same", "unclear", "unmatched"]


@dataclass(frozen=True)
class Comparison:
    """One phase of one layer in run ``a`` and in run ``b``.

    ``speedup`` is the time of ``a`` over the time of ``b``: above 1, ``b`` is the faster. ``verdict``
    speaks of ``b``; it is ``same`` where the quartile ranges overlap, and ``unclear`` where too few samples
    have any. ``differs`` maps each axis on which the two sides were measured differently to both values. An
    ``unmatched`` pair has no speedup and says why in ``reason``; a phase without device time in ``b`` has none either.
    A row that ran dense instead of its ``impl`` is unmatched, since its time is no result of that implementation.
    """

    layer: str
    phase: str
    a: LayerRun | None
    b: LayerRun | None
    speedup: float | None
    verdict: Verdict
    differs: Mapping[Axis, tuple[str, str]] = field(default_factory=dict)
    reason: str = ""


def value(row: LayerRun, axis: Axis) -> str | None:
    """Where a row lies on an axis; ``None`` for the clock and cache state of a row that was never timed."""
    if axis in ("clock", "l2"):
        return getattr(row.timing, axis) if row.timing else None
    return str(getattr(row, axis))


def grid(rows: Iterable[LayerRun]) -> tuple[Axis, ...]:
    """Axes on which two rows of one layer and phase differ: the grid that the rows span.

    A layer that differs from its neighbours, such as one convolution that was eliminated in a dense network,
    makes no grid; the same layer measured dense and eliminated does.
    """
    seen: dict[tuple[str, str, Axis], set[str]] = {}
    for row in rows:
        for axis in AXES:
            if (at := value(row, axis)) is not None:
                seen.setdefault((row.layer, row.phase, axis), set()).add(at)
    return tuple(axis for axis in AXES if any(len(at) > 1 for (_, _, name), at in seen.items() if name == axis))


def setting(row: LayerRun, axes: Iterable[Axis]) -> Setting:
    """A row's place in a grid."""
    return tuple((axis, value(row, axis)) for axis in axes)


def by_setting(rows: Sequence[LayerRun]) -> dict[Setting, tuple[LayerRun, ...]]:
    """The rows of each point of the grid, in order of appearance.

    A row that was never timed stands in every setting it agrees with, since no clock tells them apart.
    """
    axes = grid(rows)
    places = {row: setting(row, axes) for row in rows}
    groups: dict[Setting, list[LayerRun]] = {
        place: [] for place in places.values() if all(at is not None for _, at in place)
    }
    complete = tuple(groups)
    for row in rows:
        homes = [place for place in complete if agree(places[row], place)] or [places[row]]
        for home in homes:
            groups.setdefault(home, []).append(row)
    return {place: tuple(members) for place, members in groups.items()}


def agree(one: Setting, other: Setting) -> bool:
    """Whether two settings of one grid are equal wherever both are known."""
    return all(x == y or x is None or y is None for (_, x), (_, y) in zip(one, other, strict=True))
