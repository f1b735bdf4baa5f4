"""Claim: the speedup of block-circulant layers over dense ones as a function of batch size, as in figure 7.6.

Training steps of layers A, B and C of table 7.3 at batch sizes of 16 to 1,024 and block sizes of 16, 32 and 64: the
frequency-domain kernels against the dense layer in the same precision, as CUDA graphs, B in the better layout of each.
Results are compared with the dense matrix in float64 at the smallest batch size. Layers are distributed over the
available GPUs, one at a time on each.

Run: python -m benchmarks.circulant_batches
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import results
from benchmarks.circulant_layers import FORMATS, LAYERS, PRECISIONS, Layer, error_of, step_of
from benchmarks.gpus import Rows, on_every_gpu, shown
from benchmarks.published import statements
from lamina import measure, run
from lamina.accelerate.runtime.compile_ahead import compile_ahead
from lamina.build import DTYPES
from lamina.pipeline.reproduce.measured.batches import speedups
from lamina.record import Timing

BATCHES = (16, 32, 64, 128, 256, 512, 1024)
BLOCK_SIZES = (16, 32, 64)
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.01, max_time_s=0.05)


def case(
    layer: Layer, precision: str, batch: int, layout: str, block_size: int, device: torch.device
) -> tuple[nn.Module, Tensor, Tensor]:  # fmt: skip
    """A layer, dense for a block size of 0, its input and the gradient of its output."""
    one, dtype = replace(layer, batch=batch, block_size=block_size or 1), DTYPES[precision]
    torch.manual_seed(0)
    module: Any = (one.circulant() if block_size else one.dense()).to(device, dtype)
    if not block_size:
        module = module.to(memory_format=FORMATS[layout])
    x = one.input().to(device, dtype, memory_format=FORMATS[layout]).requires_grad_()
    return module, x, torch.randn_like(module(x))


def compile_kernels(layer: Layer, precision: str, device: torch.device) -> None:
    """Compile the kernels of all circulant steps together; what fails will fail again when it is timed."""
    with run.precision_mode(precision, autotune=False), compile_ahead():
        for batch, layout, block_size in product(BATCHES, layer.layouts, BLOCK_SIZES):
            with suppress(RuntimeError):
                step_of(*case(layer, precision, batch, layout, block_size, device))()


def measured(
    layer: Layer, precision: str, time: Callable[[Callable[[], object]], Timing], device: torch.device
) -> Iterator[dict[str, Any]]:
    """The dense layer and each block size at each batch and in each layout."""
    for batch, layout in product(BATCHES, layer.layouts):
        for block_size in (0, *BLOCK_SIZES):
            with run.precision_mode(precision):
                module, x, gy = case(layer, precision, batch, layout, block_size, device)
                timing = time(step_of(module, x, gy))
                error = error_of(module, x, gy) if batch == BATCHES[0] else None
            yield {
                "workload": "batches", "layer": layer.name, "phase": "step", "precision": precision, "layout": layout,
                "impl": f"circulant[block_size={block_size},signs=true,impl=kernel]" if block_size else "dense",
                "block_size": block_size, "batch": batch, "timing": "graph", "l2": "warm", "by": "lamina",
                **results.quartiles(timing),
                "rel_error": error, **({} if error is not None else {"unchecked": "held at the smallest batch"}),
            }  # fmt: skip


def shown_while_measured(piece: tuple[str, Layer]) -> Rows:
    """The rows of a layer in a precision, printed as they are measured."""
    precision, layer = piece
    device = torch.device("cuda")
    clock = measure.GraphClock(device)
    compile_kernels(layer, precision, device)
    with torch.cuda.stream(clock.stream):
        rows = measured(layer, precision, partial(clock.time, repeat=REPEAT), device)
        return shown(rows, ("layer", "precision", "layout", "batch", "impl", "median_us"))


def main() -> None:
    asked = results.arguments("circulant_batches")
    layers = [layer for layer in LAYERS if layer.name in ("A", "B", "C")]
    for rows in on_every_gpu(shown_while_measured, list(product(PRECISIONS, layers))):
        gains = {
            f"{layer} k={block_size} {precision}, by batch": {str(batch): ratio for batch, ratio in by.items()}
            for precision in PRECISIONS
            for (layer, block_size), by in speedups(rows, precision).items()
        }
        summary = {
            "dense over circulant": gains,
            "printed and ours": statements("circulant-batches", rows),
        }
        path = results.write("circulant_batches", "cuda", rows, summary, asked)
    print(path)


if __name__ == "__main__":
    main()
