"""Zeros in activation maps while networks train, at every iteration and as the monitor samples them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from statistics import fmean

from lamina.accelerate.training.sparsity_monitor import Parameters
from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.judging import Judged, Measurement, Row, Rows, Rule, share
from lamina.pipeline.reproduce.recorded import names
from lamina.spec.published import PublishedValue

SECOND = {"cifarnet": "features.5", "cifarnet64": "features.5"}
"""The map after the second convolution, which figure 6.1 shows."""


def watched(rows: Rows, network: str) -> Row:
    """The row of the network's training in which every iteration was counted."""
    return [row for row in rows if row["workload"] == network and row.get("densities")][-1]


def zeros(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Zeros in % at the end of a training of CifarNet, in the map after its second convolution.

    Raises:
        LookupError: no such training was counted.
    """
    row = [row for row in rows if row["workload"] in SECOND and row.get("densities")][-1]
    course = row["densities"][SECOND[row["workload"]]]
    ours = 100 * (1 - course[-1])
    return ours, f"{ours:.3g} % after {row['iterations']} iterations ({100 * (1 - course[0]):.3g} % at first)"


def maps_differ(rows: Rows, network: str) -> Judged:
    """The maps with the most and the fewest zeros differ by a tenth of all elements at the end."""
    last = [course[-1] for course in watched(rows, network)["densities"].values()]
    return f"{1 - max(last):.0%} to {1 - min(last):.0%} zeros", max(last) - min(last) > 0.1


def neighbours_are_alike(rows: Rows, network: str) -> Judged:
    """Densities a fiftieth of the training apart differ by less than 0.02 on average."""
    courses = watched(rows, network)["densities"].values()
    return share("maps", (fmean(abs(a - b) for a, b in pairwise(course)) < 0.02 for course in courses))


def zeros_increase_then_stay(rows: Rows, network: str) -> Judged:
    """There are more zeros at the end than at first, and in the last quarter they vary by less than 0.05."""
    courses = [(course[0], course[-len(course) // 4 :]) for course in watched(rows, network)["densities"].values()]
    return share("maps", (last[-1] < first and max(last) - min(last) < 0.05 for first, last in courses))


def trend_is_followed(rows: Rows, network: str) -> Judged:
    """The sampled trend is within 0.02 of the whole one, on average over iterations."""
    return share("maps", (apart <= 0.02 for apart in watched(rows, network)["trend_apart"].values()))


def periods_grow(rows: Rows, network: str) -> Judged:
    """The last period is longer than the first.

    Raises:
        ValueError: the training is too short for the monitor to have changed a period, which takes a whole history.
    """
    row, grew = watched(rows, network), []
    for samples in row["sampled"].values():
        begins = [b for (a, _), (b, _) in pairwise(samples) if b > a + 1]
        if len(begins) <= Parameters().history:
            raise ValueError(f"expected more than {Parameters().history} periods, got {len(begins)}")
        grew.append(begins[-1] - begins[-2] > begins[1] - begins[0])
    return share("maps", grew)


MONITORED = (trend_is_followed, periods_grow)
RULES: Mapping[str, Rule] = {
    f"{printed}_{rule.__name__}": partial(rule, network=network)
    for printed, network, rules in (
        ("alexnet", "alexnet", (maps_differ, neighbours_are_alike, zeros_increase_then_stay, *MONITORED)),
        ("vgg11", "vgg11_cifar", MONITORED),
    )
    for rule in rules
}
"""The statements of the dissertation about these figures, by the names of the entries."""
RECORDED = ("activation_zeros", "activation_zeros_long")
"""Shipped rows; those of a training as long as the dissertation's, where there are any, come last and decide."""
MEASUREMENT = Measurement(
    tuple(name for name in RECORDED if name in names()),
    values={"zeros": zeros},
    statements=RULES,
    run=live("monitor", "zeros"),
    command="python -m benchmarks.sparse_training long",
)
