"""Claim: fully connected layers with 8-bit weights are at least 1.6 times as fast as in bfloat16 up to batch 16 where
their weights come from memory, and the choice by sizes leaves dense those that are not faster.

AlexNet's and VGG-16's layers at batch 1 to 128. ``kernel`` widens weights in registers, ``reference`` writes the wide
weights to memory before the library's product, which is what packing off chip does; ``dense`` is the library in
bfloat16. Warm, the same weights are read again and again; cold, copies of them in turn that together are larger than
any cache. Every result is held to the product of the weights as they are read, in float64.

Run: python -m benchmarks.fission_weights
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import results
from lamina import measure, run
from lamina.accelerate.methods.weight_only import functional
from lamina.accelerate.methods.weight_only.config import Format, Impl
from lamina.accelerate.methods.weight_only.cost import H200, choose
from lamina.accelerate.methods.weight_only.formats import Packed, pack, unpack

LAYERS = {
    "alexnet fc6": (4096, 9216),
    "fc7": (4096, 4096),
    "fc8": (1000, 4096),
    "vgg16 fc6": (4096, 25088),
}
"""Outputs and inputs; the last two layers are the same in both networks."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
STORED: tuple[tuple[Format, Impl], ...] = (("e4m3", "kernel"), ("e4m3", "reference"), ("deft16", "kernel"))
ENOUGH = 150 << 20
"""Bytes of copies that no cache holds: three times the L2 of the largest GPU."""
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.01, max_time_s=0.05)


@dataclass(frozen=True)
class Way:
    """How a layer is computed from one of its copies; ``bytes`` of a copy's weights."""

    impl: str
    call: Callable[[Tensor, int], Tensor]
    copies: int
    exact: Tensor


def copies_of(size: int) -> int:
    return ceil(ENOUGH / size)


def ways(outputs: int, inputs: int) -> Iterator[Way]:
    """Dense and stored; memory is given back before the next."""
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device="cuda") / inputs**0.5
    dense = weight.bfloat16()
    many = [dense.clone() for _ in range(copies_of(dense.nbytes))]
    yield Way("dense", lambda x, i: F.linear(x, many[i]), len(many), dense)
    many.clear()
    for format, impl in STORED:
        packed = pack(weight, format, "row")
        stored = [
            Packed(format, packed.codes.clone(), packed.scale, inputs) for _ in range(copies_of(packed.codes.nbytes))
        ]

        def call(x: Tensor, i: int, impl: Impl = impl, stored: list[Packed] = stored) -> Tensor:
            return functional.linear(x, stored[i], impl=impl)

        yield Way(f"weight-only[format={format},impl={impl}]", call, len(stored), unpack(packed))
        stored.clear()


def measured(layer: str, clock: measure.GraphClock) -> Iterator[dict[str, Any]]:
    """Rows of one layer, warm and cold."""
    outputs, inputs = LAYERS[layer]
    for way in ways(outputs, inputs):
        for batch in BATCHES:
            torch.manual_seed(batch)
            x = torch.randn(batch, inputs, device="cuda").bfloat16()
            error = run.relative_error([way.call(x, 0)], [F.linear(x.double(), way.exact.double())])
            for l2, copies in (("warm", 1), ("cold", way.copies)):

                def all_of_them(copies: int = copies, x: Tensor = x, way: Way = way) -> None:
                    for i in range(copies):
                        way.call(x, i)

                with torch.cuda.stream(clock.stream), torch.no_grad():
                    time = clock.time(all_of_them, repeat=REPEAT)
                yield {
                    "workload": layer.split()[0] if " " in layer else "alexnet, vgg16",
                    "layer": layer,
                    "phase": "forward",
                    "precision": "bf16",
                    "layout": "nchw",
                    "impl": way.impl,
                    "batch": batch,
                    "timing": "graph",
                    "l2": l2,
                    "median_us": time.median_us / copies,
                    "q1_us": time.q1_us / copies,
                    "q3_us": time.q3_us / copies,
                    "n": time.n,
                    "rel_error": error,
                    "by": "library" if way.impl == "dense" else "lamina",
                    "outputs": outputs,
                    "inputs": inputs,
                }


def compared(rows: list[dict[str, Any]]) -> None:
    """Write into each row its speedup over dense, and into the kernel's what the choice says of it."""
    dense = {key(row): row["median_us"] for row in rows if row["impl"] == "dense"}
    for row in rows:
        row["speedup"] = dense[key(row)] / row["median_us"]
        if row["impl"] == "weight-only[format=e4m3,impl=kernel]":
            choice = choose(row["batch"], row["outputs"], row["inputs"], H200)
            row |= {"chosen": choice.format or "dense", "predicted_us": choice.stored_us}
            row["predicted_speedup"] = choice.dense_us / choice.stored_us


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["layer"], row["batch"], row["l2"]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ours = [row for row in rows if "chosen" in row]
    found: dict[str, Any] = {}
    for layer in dict.fromkeys(row["layer"] for row in ours):
        for l2 in ("warm", "cold"):
            told = {row["batch"]: f"{row['speedup']:.2f}" for row in ours if (row["layer"], row["l2"]) == (layer, l2)}
            found[f"{layer}, {l2}"] = told
    few = [row for row in ours if row["batch"] <= 16]
    short = [f"{name(row)} {row['speedup']:.2f} x" for row in few if row["speedup"] < 1.6]
    wrong = [f"{name(row)} {row['chosen']} at {row['speedup']:.2f} x" for row in ours if mistaken(row)]
    return found | {"below 1.6 x up to batch 16": short or "none", "choices against the table": wrong or "none"}


def mistaken(row: dict[str, Any]) -> bool:
    """Whether the choice is slower than dense by more than 2 %, or leaves more than 5 % to gain."""
    return bool(row["speedup"] < 0.98 if row["chosen"] != "dense" else row["speedup"] > 1.05)


def name(row: dict[str, Any]) -> str:
    return f"{row['layer']} x {row['batch']}, {row['l2']}:"


def main() -> None:
    asked = results.arguments("fission_weights")
    clock = measure.GraphClock("cuda")
    rows: list[dict[str, Any]] = []
    for layer in LAYERS:
        rows += measured(layer, clock)
        compared(rows)
        path = results.write("fission_weights", "cuda", rows, summary(rows), asked)
        print(layer, "done", flush=True)
    print(path)
    for what, shown in summary(rows).items():
        print(f"{what}: {shown}")


if __name__ == "__main__":
    main()
