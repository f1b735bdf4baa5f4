"""Near-compute data fission on chip, and the use of a GPU's parts by the kernel without it: figures 2 and 9."""

from __future__ import annotations

from math import prod

from lamina.accelerate.methods.weight_only.config import Format
from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Measurement, NotMeasured, Row, Rows
from lamina.spec.published import PublishedValue

FORMATS: tuple[Format, ...] = ("deft16", "deft16q", "e5m2")
"""The formats of the paper; ``half`` is the one that it rejects."""


def gains(rows: Rows, keep: float = 1.0) -> dict[str, float]:
    """Speedup of each layer by the fastest format and tile over the fastest tile of the same kernel in fp32.

    ``keep`` is the fraction of input channels of the faster side; rows without that column have all.
    """
    found = {}
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer]
        before = min(row["median_us"] for row in own if row["format"] == "float" and _keep(row) == 1)
        found[layer] = before / min(row["median_us"] for row in own if row["format"] in FORMATS and _keep(row) == keep)
    return found


def _keep(row: Row) -> float:
    return float(row.get("keep") or 1)


def both_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """As `fission_speedup`, with elimination of half of the input channels in the same kernel.

    Raises:
        NotMeasured: the rows have no such kernel.
    """
    own = [row for row in rows if row.get("format")]
    keep = min(map(_keep, own), default=1.0)
    if keep == 1:
        raise NotMeasured("not in these rows: measure on a GPU (on-chip-fission[keep=0.5])")
    return _mean(gains(own, keep), f", {keep:.0%} of the inputs kept")


def fission_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Geometric mean over AlexNet's layers.

    Raises:
        ValueError: there are no layers.
    """
    return _mean(gains([row for row in rows if row.get("format")]))


def _mean(each: dict[str, float], text: str = "") -> tuple[float, str]:
    if not each:
        raise ValueError("expected layers, got none")
    mean = prod(each.values()) ** (1 / len(each))
    return (
        mean,
        f"{mean:.3g} x over {len(each)} layers of AlexNet, {min(each.values()):.3g} to {max(each.values()):.3g}{text}",
    )


MEASUREMENT = Measurement(
    ("on_chip_fission",),
    values={"fission speedup": fission_speedup},
    run=live("fission", "layers"),
    needs_gpu=True,
    command="python -m benchmarks.fission_simt",
)
