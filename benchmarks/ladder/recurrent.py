"""Claim: what it is worth to make gates, cells and transforms of a recurrence's step in one kernel, on small tiles.

Whole steps of block-circulant LSTMs of 256 to 2048 cells, block size 64: by the operators of a linear layer, one time
step behind the other; by two kernels a time step on tiles as high as tensor cores are; on tiles of their own. Beside
them the library's dense layer in the same precision. Predicted is what four launches a time step take that do next to
nothing, one behind the other. Results and input gradients are held to the dense matrices in float64. Layers are spread
over the GPUs there are; each is timed alone on its own.

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
from lamina.accelerate.methods.circulant.tiles import StepTile, step_tile
from lamina.build import DTYPES
from lamina.record import Timing

LAUNCHES = 100
"""Of next to nothing, that are timed together."""


def high_tile(block_size: int, rows: int, blocks: int) -> StepTile:
    """Of sixteen blocks, as tensor cores have rows."""
    tile = step_tile(block_size, rows, blocks)
    return replace(tile, rows=max(1, 16 // tile.blocks))


RUNGS: dict[str, Changes] = {
    "operators": ((ops, {"directly": ops.by_steps}),),
    "kernels": ((ops, {"step_tile": high_tile}),),
    "own": (),
}
"""What the rungs change: how all time steps are made, and the tiles of one."""


def launch_us(time: Callable[[Callable[[], object]], Timing], device: torch.device) -> float:
    """Of a kernel that has next to nothing to do, behind one alike."""
    x = torch.zeros(1, BLOCK_SIZE, 1, device=device)

    def chain() -> None:
        for _ in range(LAUNCHES):
            dft(x, None, BLOCK_SIZE, 1, False, x.dtype)

    return time(chain).median_us / LAUNCHES


def measured(
    size: int, precision: str, time: Callable[[Callable[[], object]], Timing], device: torch.device,
    sequence: tuple[int, int] = (STEPS, BATCH),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The library's layer, then a row for each rung."""
    dtype, predicted = DTYPES[precision], 4 * sequence[0] * launch_us(time, device)
    with run.precision_mode(precision):
        torch.manual_seed(0)
        dense = nn.LSTM(size, size).to(device, dtype)
        x = torch.randn(*sequence, size, device=device).to(dtype).requires_grad_()
        layer = BlockCirculantLSTM.from_dense(dense, BLOCK_SIZE, impl="kernel")
        exact = step_of(layer.to_dense().double(), x.detach().double().requires_grad_(), dtype)()[:2]

        def row(module: nn.Module, impl: str) -> dict[str, Any]:
            step = step_of(module, x, dtype)
            told = UNCHECKED if impl == "dense" else {"rel_error": run.relative_error(step()[:2], exact)}
            timing = time(step)
            return {
                "workload": "recurrent", "layer": f"lstm {size}", "phase": "step", "precision": precision,
                "layout": "nchw", "impl": impl, "batch": sequence[1], "timing": "graph", "l2": "warm", "by": "lamina",
                **results.quartiles(timing), "rel_error": None, "predicted_us": predicted, **told,
            }  # fmt: skip

        yield row(dense, "dense")
        for rung, changes in RUNGS.items():
            with changed(changes):
                yield row(layer, f"circulant[rung={rung}]")


def shown_while_measured(piece: tuple[int, str]) -> Rows:
    """The rows of a layer in a precision, printed in short."""
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
