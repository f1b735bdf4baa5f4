"""Claim: the speedup of tiles for linear layers and of programmatic dependent launch on block-circulant linear layers.

Training steps, weight transforms and sign flips included, at block size 64. Rungs: ``images``, the tiles of
convolutions and ordinary launches; ``own``, tiles for linear layers; ``early``, programmatic dependent launch as the
preceding kernel ends; ``room``, and after small kernels as soon as they have started. The prediction is the time to
copy the bytes of all launches. Results are compared with the dense matrix in float64. Layers are distributed over the
available GPUs, one at a time on each.

Run: python -m benchmarks.ladder.linear
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks import results
from benchmarks.circulant_layers import LAYERS, PRECISIONS, REPEAT, Layer, error_of, step_of
from benchmarks.gpus import Rows, on_every_gpu, shown
from benchmarks.ladder.rungs import Changes, beside_predictions, changed
from lamina import measure, run
from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.methods.circulant.tiles import MatmulTile, conv_tile
from lamina.accelerate.runtime import triton_ops as launches
from lamina.build import DTYPES
from lamina.record import Timing


def tile_of_images(
    rows: int,
    columns: int,
    summed: int,
    matrices: int,
    itemsize: int,
    terms: int,
    min_programs: int,
    shared_memory: int,
    exact: bool,
) -> MatmulTile:
    """The tile of a convolution with one tap."""
    return conv_tile(rows, columns, summed, 1, itemsize, exact)


IN_TURN = (launches, {"supports_pdl": lambda device: False})
RUNGS: dict[str, Changes] = {
    "images": (IN_TURN, (ops, {"linear_tile": tile_of_images})),
    "own": (IN_TURN,),
    "early": ((launches, {"SMALL_TENSOR_BYTES": -1}),),
    "room": (),
}
"""What each rung patches, by module: tiles of matmuls, and programmatic dependent launch."""


def moved(layer: Layer, precision: str) -> int:
    """Bytes that all launches of a step read and write: six transforms and three matmuls."""
    transforms, product_ = layer.moved(precision)
    return 2 * transforms + 3 * product_


def measured(
    layer: Layer, precision: str, time: Callable[[Callable[[], object]], Timing], copy_gbs: float, device: torch.device
) -> Iterator[dict[str, Any]]:
    """A row for each rung."""
    dtype = DTYPES[precision]
    with run.precision_mode(precision):
        for rung, changes in RUNGS.items():
            torch.manual_seed(0)
            x = layer.input().to(device, dtype).requires_grad_()
            module = layer.circulant().to(device, dtype)
            gy = torch.randn(layer.batch, layer.outputs, device=device, dtype=dtype)
            with changed(changes):
                timing = time(step_of(module, x, gy))
                error = error_of(module, x, gy)
            yield {
                "workload": "linear", "layer": layer.name, "phase": "step", "precision": precision, "layout": "nchw",
                "impl": f"circulant[rung={rung}]", "batch": layer.batch, "timing": "graph", "l2": "warm",
                "by": "lamina", **results.quartiles(timing),
                "rel_error": error, "predicted_us": moved(layer, precision) / copy_gbs / 1e3,
            }  # fmt: skip


def shown_while_measured(piece: tuple[str, Layer]) -> Rows:
    """The rows of a layer in a precision, printed as they are measured."""
    precision, layer = piece
    device = torch.device("cuda")
    clock = measure.GraphClock(device)
    with torch.cuda.stream(clock.stream):
        copy_gbs = measure.measure_roofs(device).copy_gbs
        rows = measured(layer, precision, partial(clock.time, repeat=REPEAT), copy_gbs, device)
        return shown(rows, ("layer", "precision", "impl", "median_us", "rel_error"))


def main() -> None:
    asked = results.arguments("ladder.linear")
    linear = [layer for layer in LAYERS if not layer.kernel]
    for rows in on_every_gpu(shown_while_measured, list(product(PRECISIONS, linear))):
        summary = beside_predictions(rows, "layer", "precision")
        path = results.write("ladder_linear", "cuda", rows, summary, asked, "ladder.linear")
    print(path)


if __name__ == "__main__":
    main()
