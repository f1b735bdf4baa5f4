"""Near-compute data fission on chip, and the use of a GPU's parts by the kernel without it: figures 2 and 9."""

from __future__ import annotations

from math import prod

from lamina.pipeline.reproduce.measured.judging import Measurement, Rows
from lamina.spec.published import PublishedValue

FORMATS = ("deft16", "deft16q", "e5m2")
"""The formats of the paper; ``half`` is the one that it rejects."""


def gains(rows: Rows) -> dict[str, float]:
    """Speedup of each layer by the fastest format and tile over the fastest tile of the same kernel in fp32."""
    found = {}
    for layer in dict.fromkeys(row["layer"] for row in rows):
        own = [row for row in rows if row["layer"] == layer]
        before = min(row["median_us"] for row in own if row["format"] == "float")
        found[layer] = before / min(row["median_us"] for row in own if row["format"] in FORMATS)
    return found


def fission_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Geometric mean over AlexNet's layers.

    Raises:
        ValueError: there are no layers.
    """
    each = gains([row for row in rows if row.get("format")])
    if not each:
        raise ValueError("expected layers, got none")
    mean = prod(each.values()) ** (1 / len(each))
    return (
        mean,
        f"{mean:.3g} x over {len(each)} layers of AlexNet, {min(each.values()):.3g} to {max(each.values()):.3g}",
    )


MEASUREMENT = Measurement(
    ("on_chip_fission",),
    values={"fission speedup": fission_speedup},
    needs_gpu=True,
    command="python -m benchmarks.fission_simt",
)
