"""Phases whose kernels change with the batch: the library chose another algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lamina.explain.view import FACT, MATTERS, View
from lamina.explain.wording import kernel_name, name
from lamina.record import Finding, LayerRun
from lamina.record.wording import listed

HELPERS = ("copy", "layout", "elementwise", "reduction")
"""Kinds of auxiliary kernels, which do not identify an algorithm."""


def algorithm_changes(views: Sequence[View]) -> Iterator[Finding]:
    """Phases that run other matrix kernels than at the next smaller batch size."""
    groups: dict[tuple[str, ...], list[tuple[LayerRun, View]]] = {}
    for view in views:
        for row in view.rows:
            if row.key in view.launches:
                group = (row.layer, row.phase, row.executed_impl, row.precision, row.layout)
                groups.setdefault(group, []).append((row, view))
    changed: list[LayerRun] = []
    evidence: dict[str, float | str | None] = {}
    for members in groups.values():
        members.sort(key=lambda member: member[0].batch)
        for (small, one), (large, other) in pairwise(members):
            before, after = _work(one, small), _work(other, large)
            weight = max(one.share.get(small, 0.0), other.share.get(large, 0.0))
            if small.batch != large.batch and before != after and weight >= MATTERS:
                changed.append(large)
                kernels = [listed(sorted(map(kernel_name, side))) or "none" for side in (before, after)]
                evidence[f"{name(large)}, batch {small.batch} to {large.batch}"] = " to ".join(kernels)
    if changed:
        several = dict.fromkeys(name(row) for row in changed)
        claim = (
            f"{listed(list(several))} run other kernels at another batch size: the library changes its algorithm, so "
            "the time does not scale with the batch size there"
        )
        yield Finding(None, None, "algorithm changes", claim, evidence, FACT)


def _work(view: View, row: LayerRun) -> frozenset[str]:
    """Names of a phase's main kernels: its matrix kernels if it has any."""
    launches = view.launches[row.key]
    matrix = [one.kernel for one in launches if one.kind == "matrix"]
    return frozenset(kernel.name for kernel in matrix or [one.kernel for one in launches if one.kind not in HELPERS])
