"""DeftNN's six networks end to end: figures 9, 16 and 17."""

from __future__ import annotations

from math import prod

from lamina.pipeline.reproduce.live import live
from lamina.pipeline.reproduce.measured.fission import both_speedup, fission_speedup
from lamina.pipeline.reproduce.measured.judging import Measurement, Rows, fastest
from lamina.spec.published import PublishedValue

DENSE, DEFT, SPARSE = "dense", "deft[ways=fastest]", "magnitude"
"""The library, elimination by the selected implementation of each layer, and pruned weights in the library's sparse
products."""
ALEXNET = "alexnet"


def whole(rows: Rows, network: str, impl: str) -> float:
    """Time of a network's inference at the largest measured batch size, in its better layout, in us."""
    own = [row for row in rows if row["workload"] == network and row["layer"] == "whole"]
    return fastest(own, impl=impl, batch=max(row["batch"] for row in own))


def elimination_speedup(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """Geometric mean over the networks, against the vendor library.

    Raises:
        ValueError: a network was not measured.
    """
    names = list(dict.fromkeys(row["workload"] for row in rows if row["layer"] == "whole"))
    each = {name: whole(rows, name, DENSE) / whole(rows, name, DEFT) for name in names}
    mean = prod(each.values()) ** (1 / len(each))
    return mean, f"{mean:.3g} x ({', '.join(f'{name} {ratio:.3g}' for name, ratio in each.items())})"


def ratio(before: str, after: str, rows: Rows) -> tuple[float, str]:
    """Time of AlexNet by one implementation over the time by another."""
    ours = whole(rows, ALEXNET, before) / whole(rows, ALEXNET, after)
    return ours, f"{ours:.3g} x"


def break_even_density(rows: Rows, value: PublishedValue) -> tuple[float, str]:
    """The largest density in % at which the library's product of compressed sparse rows is faster than its dense one.

    Raises:
        ValueError: it is never faster.
    """
    products = [row for row in rows if row.get("what") == "product"]
    faster = [
        zeros
        for zeros in dict.fromkeys(row["zeros"] for row in products)
        if fastest(products, zeros=zeros, impl="csr") < fastest(products, zeros=zeros, impl="dense")
    ]
    ours = 100 - min(faster)
    return ours, f"{ours:.3g} % in an unpruned layer's product (CifarNet's second convolution)"


MEASUREMENT = Measurement(
    ("deft_networks", "on_chip_fission", "sparse_libraries"),
    values={
        "elimination speedup": elimination_speedup,
        "fission speedup": fission_speedup,
        "speedup of both": both_speedup,
        "break-even density": break_even_density,
        "slowdown against dense": lambda rows, value: ratio(SPARSE, DENSE, rows),
        "slowdown against elimination": lambda rows, value: ratio(SPARSE, DEFT, rows),
        "speedup": lambda rows, value: ratio(DENSE, DEFT, rows),
    },
    run=live("fission", "networks"),
    command="python -m benchmarks.deft_networks long",
)
LIBRARY = Measurement(
    ("deft_networks",),
    values={"elimination speedup": elimination_speedup},
    run=MEASUREMENT.run,
    command=MEASUREMENT.command,
)
