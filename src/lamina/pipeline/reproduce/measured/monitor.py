"""Time that the sparsity monitor adds to a training step, as in table 6.6."""

from __future__ import annotations

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Measurement, NotMeasured, Rows
from lamina.spec.published import PublishedValue

NETWORKS = {
    "VGGNet-11": "vgg11_cifar",
    "ResNet-10": "resnet10_cifar",
    "AlexNet": "alexnet",
    "VGGNet-16": "vgg16",
    "ResNet-18": "resnet18",
}
NOISE = 2.0
"""Per cent below zero from which a time is noise."""
EXHAUSTIVE, SAMPLED = "monitor[exhaustive,torch]", "monitor[sampled]"
"""The paper profiles exhaustively by a kernel of its framework behind each layer; that is plain torch here."""


def added(impl: str, rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Time added to a step, in %; one slightly below zero counts as none.

    Raises:
        LookupError: the network is unknown or has no row.
        NotMeasured: the monitor made the step faster by more than noise does on an idle machine.
    """
    name = NETWORKS[value.layer]
    ours = [100 * row["added"] for row in rows if row["workload"] == name and row["impl"] == impl]
    own = [100 * row["added"] for row in rows if row["workload"] == name and row["impl"] == "monitor[exhaustive]"]
    if ours[-1] < -NOISE:
        raise NotMeasured(f"noise: a step with the monitor was {-ours[-1]:.0f} % faster")
    text = f"{ours[-1]:.2f} %"
    if impl == EXHAUSTIVE and own:
        text += f" by plain torch, {own[-1]:.2f} % by lamina's kernel"
    return max(ours[-1], 0.0), text


MEASUREMENT = Measurement(
    ("monitor_overhead",),
    values={
        "exhaustive profiling": lambda rows, value: added(EXHAUSTIVE, rows, value),
        "sparsity monitor": lambda rows, value: added(SAMPLED, rows, value),
    },
    run=live("monitor", "overhead"),
    command="python -m benchmarks.monitor_overhead",
)
