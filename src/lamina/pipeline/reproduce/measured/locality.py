"""Data reuse (DR) and memory access distance (MD) of the dissertation's mappings: section 7.3.2, counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from math import prod
from typing import Any

from lamina.accelerate.papers.circulant_ladder.mapping import ROLES, Phase, Sizes
from lamina.accelerate.papers.circulant_ladder.metrics import equation_7_5, equation_7_6, locality
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS
from lamina.pipeline.reproduce.measured.counted import CIRCULANT
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Row, Rows, Rule, Scope, share

BLOCK_SIZES = (16, 32, 64)
CASES = "layers, block sizes and phases"
PIXELS = 14 * 14
"""Of an image of layer B."""


def counted(scope: Scope) -> Rows:
    """Rows of every layer of table 7.3, block size, phase and version."""
    rows = list[dict[str, Any]]()
    for (layer, one), k, phase, impl in product(CIRCULANT.items(), BLOCK_SIZES, ROLES, IMPLS):
        inputs, outputs, *kernel = one["shape"]
        rows_of = one["batch"] * (PIXELS if kernel else 1)
        sizes = Sizes(n=rows_of, p=outputs // k, q=inputs * prod(kernel) // k, f=k // 2 + 1)
        named = {"workload": layer, "block_size": k, "phase": phase, "impl": impl, "m2": sizes[ROLES[phase][1]]}
        rows.append(named | asdict(locality(impl, phase, sizes)))
    return rows


def reuses_by(impl: str, equation: Callable[[int], int]) -> Rule:
    """The DR of a version is the equation's, or the length of the axis M2 where that is less."""

    def rule(rows: Rows) -> Judged:
        own = [row for row in rows if row["impl"] == impl]
        text, holds = share(CASES, (row["dr"] == min(equation(row["block_size"]), row["m2"]) for row in own))
        known = {k: max(row["dr"] for row in own if row["block_size"] == k) for k in BLOCK_SIZES}
        return f"{text}; DR {', '.join(map(str, known.values()))} at k = {', '.join(map(str, known))}", holds

    return rule


def beside(column: str, holds: Callable[[float, float], bool], a: str = "o2", b: str = "o1", *phases: Phase) -> Rule:
    """A rule about a column of two versions, in every case of some phases."""

    def rule(rows: Rows) -> Judged:
        pairs = zip(*([row for row in rows if row["impl"] == impl] for impl in (a, b)), strict=True)
        return share(CASES, (holds(one[column], two[column]) for one, two in pairs if _among(one, phases)))

    return rule


def reuses_more_below_32(rows: Rows) -> Judged:
    """O2 reuses more than O1 where the axis is long enough, and equally from 32."""
    pairs = zip(*([row for row in rows if row["impl"] == impl] for impl in ("o2", "o1")), strict=True)
    cases = [(one["dr"], two["dr"], one["block_size"]) for one, two in pairs if one["m2"] >= equation_7_6(16)]
    return share(CASES, (a > b if k < 32 else a == b for a, b, k in cases))


def reads_consecutively(rows: Rows) -> Judged:
    """MD of O2's reads in both gradients is at most 1."""
    own = [row for row in rows if row["impl"] == "o2" and row["phase"] != "forward"]
    return share(CASES, (row["md_read"] <= 1 for row in own))


def reorganized_forward(rows: Rows) -> Judged:
    """The weight as ``p x k x q`` has a smaller MD than as stored, which kernel fusion reads."""
    before, printed, argued = ([
        row["md_read"] for row in rows if row["impl"] == impl and row["phase"] == "forward"
    ] for impl in ("fusion", "o2", "o2_argued"))  # fmt: skip
    text, holds = share("layers and block sizes", (b < a for a, b in zip(before, printed, strict=True)))
    ratios = [b / a for a, b in zip(before, printed, strict=True)]
    return f"{text}, to {min(ratios):.3g} of it at best; as q x p x k it is at most {max(argued):.3g}", holds


def _among(row: Row, phases: tuple[Phase, ...]) -> bool:
    return not phases or row["phase"] in phases


MEASUREMENT = Measurement(
    (),
    statements={
        "o1_reuses_by_equation_7_5": reuses_by("o1", equation_7_5),
        "o2_reuses_by_equation_7_6": reuses_by("o2", equation_7_6),
        "o2_reuses_more_below_32": reuses_more_below_32,
        "o2_reads_consecutively_in_gradients": reads_consecutively,
        "o2_reorganizes_the_forward_weight": reorganized_forward,
        "o2_reads_closer_than_o1": beside("md_read", lambda a, b: a < b),
        "o2_writes_farther_than_o1": beside("md_written", lambda a, b: a > b),
    },
    run=counted,
)
