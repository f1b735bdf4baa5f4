"""Claim: synapse vector elimination has a front of accuracy and work, and useful points on it (Hill 2017, section 5.6).

LeNet-5 on Fashion-MNIST, as in ``lamina reproduce run deftnn-figure-14``: each layer is fine-tuned at each correlation
threshold on its own, and a greedy search composes them. ``accuracy`` in percent is on test samples that the search does
not see. Beside the front: the dense network, the same tuned for as many epochs, its weights pruned by magnitude, at
once and before each epoch, to as few as the smallest point within 5 points of accuracy has, and whole output channels
pruned to as many multiplications. An inference of ``BATCH`` images is timed on the CPU; speed is not the claim.
``smoke`` trains for less.

Run: python -m benchmarks.deft_front full
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks import results
from lamina import measure
from lamina.pipeline.reproduce.live.front import LOSS, SHAPE, front
from lamina.pipeline.reproduce.measured.front import MEASUREMENT
from lamina.pipeline.reproduce.measured.judging import Scope

BATCH = 128
REPEAT = measure.Repeat(min_samples=5, min_time_s=0.0, max_time_s=0.1, warmup=1)


def main() -> None:
    args = results.arguments("deft_front", scope=("full", "smoke"))
    clock, x = measure.clock("cpu", "cpu"), torch.zeros(BATCH, *SHAPE)
    rows: list[dict[str, Any]] = []
    for row in front(Scope("cpu", args.scope == "smoke")):
        network = row["network"]
        with torch.no_grad():
            timing = clock.time(partial(network, x), repeat=REPEAT)
        rows.append(
            {"workload": "lenet5", "layer": "whole", "phase": "forward", "precision": "fp32", "layout": "nchw",
             "batch": BATCH, "timing": "cpu", "l2": None, **results.quartiles(timing), "rel_error": None,
             "unchecked": "what elimination costs is told in points of accuracy",
             **{name: value for name, value in row.items() if name != "network"}}
        )  # fmt: skip
    summary = {name: "{}: {}".format(*rule(rows)) for name, rule in MEASUREMENT.statements.items()}
    dense = next(row for row in rows if row["impl"] == "dense")
    within = [row for row in rows if row["impl"] == "eliminated" and dense["accuracy"] - row["accuracy"] <= LOSS]
    smallest = max(within, key=lambda row: float(row["reduction"]))
    told = {f"eliminated, within {LOSS:g} points": smallest}
    told |= {row["impl"]: row for row in rows if row["impl"] != "eliminated"}
    for name, row in told.items():
        left = f"{100 / row['reduction']:.0f} % of the multiplications"
        summary[name] = f"{row['accuracy']:.1f} % with {row['weights']} weights and {left}"
    claim = "deft_front" if args.scope == "full" else f"deft_front_{args.scope}"
    print(results.write(claim, "cpu", rows, summary, args, f"deft_front {args.scope}"))
    for name, value in summary.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
