"""Claim: the speedup of fusing gates, cell and transforms of an LSTM time step into one kernel, on small tiles.

Training steps of block-circulant LSTMs with 256 to 2048 hidden units, block size 64. Rungs: ``operators``, the
operators of a linear layer, one time step after the other; ``kernels``, two kernels per time step on tiles of sixteen
blocks; ``own``, on tiles chosen by size. The dense layer of the library in the same precision is measured beside them.
The prediction is the time of four nearly empty launches per time step. Results and input gradients are compared with
the dense matrices in float64. Layers are distributed over the available GPUs, one at a time on each.

Run: python -m benchmarks.ladder.recurrent
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from benchmarks import results
from benchmarks.circulant_layers import BLOCK_SIZE, PRECISIONS, REPEAT
from benchmarks.circulant_recurrent import BATCH, SIZES, STEPS, UNCHECKED, step_of
from benchmarks.gpus import Rows, on_every_gpu, shown
from benchmarks.ladder.rungs import Changes, beside_predictions, changed
from lamina import measure, run
from lamina.accelerate.methods.circulant.lstm import ops
from lamina.accelerate.methods.circulant.nn import BlockCirculantLSTM
from lamina.accelerate.methods.circulant.spectral.ops import dft
from lamina.accelerate.methods.circulant.tiles import LSTMStepTile, lstm_step_tile
from lamina.build import DTYPES
from lamina.record import Timing

LAUNCHES = 100
"""Nearly empty launches that are timed together."""


def sixteen_block_tile(block_size: int, rows: int, blocks: int) -> LSTMStepTile:
    """A tile of sixteen blocks, the rows of a tensor-core instruction."""
    tile = lstm_step_tile(block_size, rows, blocks)
    return replace(tile, rows=max(1, 16 // tile.blocks))


RUNGS: dict[str, Changes] = {
    "operators": ((ops, {"recurrence_eager": ops.recurrence_by_steps}),),
    "kernels": ((ops, {"lstm_step_tile": sixteen_block_tile}),),
    "own": (),
}
"""What each rung patches: the implementation of the recurrence, and the tiles of a time step."""


def launch_us(time: Callable[[Callable[[], object]], Timing], device: torch.device) -> float:
    """The time of a nearly empty kernel in a chain of identical ones, in microseconds."""
    x = torch.zeros(1, BLOCK_SIZE, 1, device=device)

    def chain() -> None:
        for _ in range(LAUNCHES):
            dft(x, None, BLOCK_SIZE, 1, False, x.dtype)

    return time(chain).median_us / LAUNCHES


def measured(
    size: int, precision: str, time: Callable[[Callable[[], object]], Timing], device: torch.device,
    sequence: tuple[int, int] = (STEPS, BATCH),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for the dense layer of the library, then one for each rung."""
    dtype, predicted = DTYPES[precision], 4 * sequence[0] * launch_us(time, device)
    with run.precision_mode(precision):
        torch.manual_seed(0)
        dense = nn.LSTM(size, size).to(device, dtype)
        x = torch.randn(*sequence, size, device=device).to(dtype).requires_grad_()
        layer = BlockCirculantLSTM.from_dense(dense, BLOCK_SIZE, impl="kernel")
        exact = step_of(layer.to_dense().double(), x.detach().double().requires_grad_(), dtype)()[:2]

        def row(module: nn.Module, impl: str) -> dict[str, Any]:
            step = step_of(module, x, dtype)
            accuracy = UNCHECKED if impl == "dense" else {"rel_error": run.relative_error(step()[:2], exact)}
            timing = time(step)
            return {
                "workload": "recurrent", "layer": f"lstm {size}", "phase": "step", "precision": precision,
                "layout": "nchw", "impl": impl, "batch": sequence[1], "timing": "graph", "l2": "warm", "by": "lamina",
                **results.quartiles(timing), "rel_error": None, "predicted_us": predicted, **accuracy,
            }  # fmt: skip

        yield row(dense, "dense")
        for rung, changes in RUNGS.items():
            with changed(changes):
                yield row(layer, f"circulant[rung={rung}]")


def shown_while_measured(piece: tuple[int, str]) -> Rows:
    """The rows of a layer in a precision, printed as they are measured."""
    device = torch.device("cuda")
    clock = measure.GraphClock(device)
    with torch.cuda.stream(clock.stream):
        rows = measured(*piece, partial(clock.time, repeat=REPEAT), device)
        return shown(rows, ("layer", "precision", "impl", "median_us", "rel_error"))


def main() -> None:
    asked = results.arguments("ladder.recurrent")
    for rows in on_every_gpu(shown_while_measured, list(product(SIZES, PRECISIONS))):
        summary = beside_predictions(rows, "layer", "precision")
        path = results.write("ladder_recurrent", "cuda", rows, summary, asked, "ladder.recurrent")
    print(path)


if __name__ == "__main__":
    main()
