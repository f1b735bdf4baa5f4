"""Block-circulant kernels over dense layers of whole networks, as in figure 7.7."""

from __future__ import annotations

from fnmatch import fnmatchcase
from statistics import fmean

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Measurement, Row, Rows
from lamina.spec.published import PublishedValue

LAYERS = {
    "AlexNet convolutions": "alexnet conv*",
    "AlexNet fully-connected layers": "alexnet fc*",
    "VGGNet-16 convolutions": "vgg16 conv*",
    "VGGNet-16 fully-connected layers": "vgg16 fc*",
    "TDNN and LSTM layers of more than 1.9 million weights": "large recurrent",
}
"""The rows of each published mean; the last one is chosen by `is_large`."""
LARGE = 1.9e6


def is_large(row: Row) -> bool:
    """Whether a TDNN or LSTM layer of ``size`` states and 3 * ``size``, or 8 * ``size``, inputs has enough weights."""
    weights = {"tdnn": 3, "lstm": 8}.get(row["workload"], 0) * (row.get("size") or 0) ** 2
    return weights > LARGE


def kernel_over_dense(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Mean speedup of a training step over the layers of a group, each in its better layout, in fp32.

    Raises:
        LookupError: the group is unknown.
        ValueError: no layer of it was measured.
    """
    pattern = LAYERS[value.layer]
    best: dict[str, dict[str, float]] = {}
    times: dict[str, int] = {}
    for row in rows:
        circulant = row["impl"].endswith(("impl=kernel]", "impl=reference]"))
        wanted = is_large(row) if pattern == "large recurrent" else fnmatchcase(row["layer"], pattern)
        if wanted and row["phase"] == "step" and (circulant or row["impl"] == "dense"):
            mine = best.setdefault(row["layer"], {})
            side = "circulant" if circulant else "dense"
            mine[side] = min(mine.get(side, float("inf")), row["median_us"])
            times[row["layer"]] = row.get("times") or 1
    ratios = [us["dense"] / us["circulant"] for name, us in best.items() if len(us) == 2 for _ in range(times[name])]
    if not ratios:
        raise ValueError(f"expected layers {pattern}, got none")
    mean = fmean(ratios)
    return mean, f"{mean:.3g} x, {min(ratios):.3g} to {max(ratios):.3g} over {len(ratios)} layers"


MEASUREMENT = Measurement(
    ("circulant_layers", "circulant_recurrent"),
    values={"kernel over dense": kernel_over_dense},
    run=live("circulant", "over_layers"),
    command="python -m benchmarks.circulant_layers",
)
