"""Claim: gradients of biases are summed at the bandwidth of memory.

Rungs: ``dense``, PyTorch's reduction; ``sums[ranges=1]``, one launch, in which a program adds all rows of its channels;
``sums[stages=1]``, ranges of rows in two launches; ``sums``, half as many programs with the next rows on their way, as
layers run it. Rows are output gradients of convolutions in channels-last
and of linear layers, in float32 and bf16, in CUDA graphs, not in L2. The prediction is the time to read the rows, by
the bandwidth of copies. Sums are compared with those in float64.

Run: python -m benchmarks.ladder.channel_sums
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.gpus import Rows, shown
from benchmarks.ladder.rungs import Changes, Time, beside_predictions, changed, cold_graphs
from lamina import run
from lamina.accelerate.common.channel_sums import ops
from lamina.accelerate.common.tiling import MULTIPROCESSORS

LAYERS = {
    "alexnet conv1": (128, 64, 55 * 55),
    "alexnet conv2": (128, 192, 27 * 27),
    "alexnet conv3": (128, 384, 13 * 13),
    "vgg16 conv1": (64, 64, 224 * 224),
    "mlp up": (2048, 4096, 1),
    "vit-b up": (6304, 3072, 1),
    "small": (512, 512, 1),
}
"""Images or rows, channels and pixels of output gradients."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


RUNGS: dict[str, Changes] = {
    "sums[ranges=1]": ((ops, {"PROGRAMS": 1}),),
    "sums[stages=1]": ((ops, {"PROGRAMS": 4 * MULTIPROCESSORS, "BLOCK": 4096, "STAGES": 1}),),
    "sums": (),
}


def measured(name: str, precision: str, time: Time, copy_gbs: float, device: torch.device) -> Iterator[dict[str, Any]]:
    """A row of each rung."""
    batch, channels, pixels = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(batch, pixels, channels, device=device).to(DTYPES[precision]).mT
    exact = x.double().sum((0, 2))
    calls: dict[str, tuple[Changes, Callable[[], Tensor]]] = {
        "dense": ((), lambda: x.sum((0, 2), dtype=torch.float32)),
        **{impl: (changes, lambda: ops.run_channel_sums(x, torch.float32)) for impl, changes in RUNGS.items()},
    }
    for impl, (changes, call) in calls.items():
        with torch.no_grad(), changed(changes):
            error = run.relative_error([call()], [exact])
            yield {
                "workload": "channel sums", "layer": name, "phase": "backward_weight", "precision": precision,
                "layout": "nhwc", "impl": impl, "batch": batch, "timing": "graph", "l2": "cold", "by": "lamina",
                **results.quartiles(time(call)), "rel_error": error, "predicted_us": x.nbytes / copy_gbs / 1e3,
            }  # fmt: skip


def main() -> None:
    asked = results.arguments("ladder.channel_sums")
    device = torch.device("cuda")
    rows: Rows = []
    with cold_graphs(device) as (time, copy_gbs):
        for name in LAYERS:
            for precision in DTYPES:
                found = measured(name, precision, time, copy_gbs, device)
                rows += shown(found, ("layer", "precision", "impl", "median_us"))
    summary = beside_predictions(rows, "layer", "precision")
    print(results.write("ladder_channel_sums", "cuda", rows, summary, asked, "ladder.channel_sums"))


if __name__ == "__main__":
    main()
