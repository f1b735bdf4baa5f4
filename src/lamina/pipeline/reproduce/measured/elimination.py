"""Synapse vector elimination, layer by layer: figures 6 and 10."""

from __future__ import annotations

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Measurement, Rows, fastest
from lamina.spec.published import PublishedValue

WITH = "eliminated[keep=0.5,impl={}]"
SELECTED, GATHER, SWAP, VIEW = (WITH.format(impl) for impl in ("fastest", "gather", "swap", "slice,prefix"))
"""The selected implementation; a copy of all kept inputs, reordering, and a product that reorganises nothing."""


def layers(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["layer"] for row in rows))


def reordering_over_copying(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Time of copying over time of reordering, summed over layers; the product's own time is subtracted from both.

    Raises:
        ValueError: an implementation was not measured.
    """
    product = {one: fastest(rows, layer=one, impl=VIEW) for one in layers(rows)}
    each = {
        impl: sum(max(fastest(rows, layer=one, impl=impl) - us, 0) for one, us in product.items())
        for impl in (GATHER, SWAP)
    }
    ours = each[GATHER] / each[SWAP]
    return ours, f"{ours:.3g} x ({each[GATHER]:.4g} us copying, {each[SWAP]:.4g} us reordering)"


def layer_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The smallest speedup of a layer by the selected implementation, over the better dense layout."""
    each = {
        one: fastest(rows, layer=one, impl="dense") / fastest(rows, layer=one, impl=SELECTED) for one in layers(rows)
    }
    least = min(each, key=lambda one: each[one])
    held = sum(ratio >= float(value.value) for ratio in each.values())
    return each[least], f"{each[least]:.3g} x ({least}); {held} of {len(each)} layers reach {value.value} x"


MEASUREMENT = Measurement(
    ("elimination",),
    values={"reordering over copying": reordering_over_copying, "speedup": layer_speedup},
    run=live("elimination", "layers"),
    command="python -m benchmarks.elimination all few",
)
