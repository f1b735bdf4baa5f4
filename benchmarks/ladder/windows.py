"""Claim: what it is worth to keep pixels and their halo in shared memory while a window slides over their spectra.

Products of spectra and both gradients, at block size 64, on convolutions of AlexNet (batch 128) and VGG-16 (batch 64):
by the tile language, whose taps read from cache; by CUDA, whose taps read from shared memory; and there with narrow
neighbours multiplied together. Predicted is the time that copying as many bytes takes; results are held to the tile
language's in float64, which tests hold to a convolution.

Run: python -m benchmarks.ladder.windows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import results
from benchmarks.ladder.rungs import beside_predictions
from lamina import measure, run
from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.methods.circulant.halo import compiled
from lamina.accelerate.methods.circulant.window import Window
from lamina.record import Timing

SLOTS = 32
LAYERS = {  # window, q, p
    "alexnet conv2": (Window(128, 27, 27, 5, 5, 1, 1, 2, 2), 2, 4),
    "alexnet conv4": (Window(128, 13, 13, 3, 3, 1, 1, 1, 1), 6, 6),
    "vgg16 conv2_2": (Window(64, 112, 112, 3, 3, 1, 1, 1, 1), 2, 2),
    "vgg16 conv3_2": (Window(64, 56, 56, 3, 3, 1, 1, 1, 1), 4, 4),
    "vgg16 conv4_2": (Window(64, 28, 28, 3, 3, 1, 1, 1, 1), 8, 8),
    "vgg16 conv5_1": (Window(64, 14, 14, 3, 3, 1, 1, 1, 1), 8, 8),
}
RUNGS: dict[str, dict[str, Any]] = {
    "cached": {"SMALL": 2**62},
    "halo": {"SMALL": 0, "together": lambda *_: 1},
    "together": {"SMALL": 0},
}
"""What the rungs change: from how many numbers CUDA takes a spectrum, and how many pixels it multiplies together."""
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)


def spectra(window: Window, q: int, p: int, slots: int, parts: int, device: torch.device) -> tuple[Tensor, ...]:
    """Spectra of inputs, weights and output gradients as float16, in one part or two."""
    made = []
    for rows, blocks in ((window.rows_in, q), (p * window.taps, q), (window.rows_out, p)):
        numbers = torch.randn(slots, rows, 2, blocks, device=device)
        high = numbers.half()
        made.append(high if parts == 1 else torch.stack([high, (numbers - high).half()]))
    return tuple(made)


def calls(window: Window, x: Tensor, w: Tensor, dy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The product and its gradients, by phase."""

    def weight() -> Tensor:
        return ops.added(ops.run_grads(dy, x, None, None, window, 1.0), torch.float32)

    y, dx = ops.output_like(x, w, window), ops.input_like(dy, w, window)
    return {
        "forward": partial(ops.run_mix, x, w, y, window, back=False),
        "backward_data": partial(ops.run_mix, dy, w, dx, window, back=True),
        "backward_weight": weight,
    }


def exact(window: Window, *spectra: Tensor) -> dict[str, Tensor]:
    """The same in float64."""
    x, w, dy = (one.double() if one.dim() == 4 else one.double().sum(0) for one in spectra)
    dx, dw = ops.mix_grads(dy, x, w, window.pack())
    return {"forward": ops.mix(x, w, window.pack()), "backward_data": dx, "backward_weight": dw}


def measured(
    name: str, window: Window, q: int, p: int, parts: int, time: Callable[[Callable[[], object]], Timing],
    copy_gbs: float, device: torch.device, slots: int = SLOTS,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each phase and rung."""
    x, w, dy = spectra(window, q, p, slots, parts, device)
    right = exact(window, x, w, dy)
    for phase, call in calls(window, x, w, dy).items():
        read = {"forward": x, "backward_data": dy, "backward_weight": x}[phase]
        moved = read.nbytes + w.nbytes + (dy.nbytes if phase == "backward_weight" else call().nbytes)
        for rung, changed in RUNGS.items():
            compiled._planned.cache_clear()
            with patch.multiple(compiled, **changed):
                error = run.relative_error([call()], [right[phase]])
                timing = time(call)
            yield {
                "workload": "windows", "layer": name, "phase": phase, "precision": "fp32" if parts == 2 else "tf32",
                "layout": "nhwc", "impl": f"circulant[rung={rung}]", "batch": window.batch, "timing": "graph",
                "l2": "warm", "by": "lamina", **results.quartiles(timing),
                "rel_error": error, "predicted_us": moved / copy_gbs / 1e3,
            }  # fmt: skip


def main() -> None:
    asked, device = results.arguments("ladder.windows"), torch.device("cuda")
    clock = measure.GraphClock(device)
    copy_gbs = measure.measure_roofs(device).copy_gbs
    rows: list[dict[str, Any]] = []
    with torch.cuda.stream(clock.stream):
        for parts in (1, 2):
            for name, (window, q, p) in LAYERS.items():
                time = partial(clock.time, repeat=REPEAT)
                for row in measured(name, window, q, p, parts, time, copy_gbs, device):
                    rows.append(row)
                    shown = (row[key] for key in ("precision", "phase", "impl", "median_us", "rel_error"))
                    print(name, *shown, flush=True)
                torch.cuda.empty_cache()
    summary = beside_predictions(rows, "layer", "precision", "phase")
    print(results.write("ladder_windows", "cuda", rows, summary, asked, "ladder.windows"))


if __name__ == "__main__":
    main()
