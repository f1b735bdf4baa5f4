"""Claim: the speedup of spectral matmuls with pixels and their halo in shared memory.

Spectral matmuls and both gradients, at block size 64, on convolutions of AlexNet (batch 128) and VGG-16 (batch 64).
Rungs: ``cached``, Triton kernels, whose taps read from the caches; ``halo``, CUDA kernels, whose taps read from shared
memory; ``together``, CUDA kernels that also pack narrow neighboring pixels. The prediction is the time to copy as many
bytes. Results are compared with the Triton kernels in float64, which tests compare with a convolution.

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
from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import ops
from lamina.accelerate.methods.circulant.halo import cuda as halo
from lamina.record import Timing

SLOTS = 32
LAYERS = {  # window, q, p
    "alexnet conv2": (Conv2dProblem(128, 27, 27, 5, 5, 1, 1, 2, 2), 2, 4),
    "alexnet conv4": (Conv2dProblem(128, 13, 13, 3, 3, 1, 1, 1, 1), 6, 6),
    "vgg16 conv2_2": (Conv2dProblem(64, 112, 112, 3, 3, 1, 1, 1, 1), 2, 2),
    "vgg16 conv3_2": (Conv2dProblem(64, 56, 56, 3, 3, 1, 1, 1, 1), 4, 4),
    "vgg16 conv4_2": (Conv2dProblem(64, 28, 28, 3, 3, 1, 1, 1, 1), 8, 8),
    "vgg16 conv5_1": (Conv2dProblem(64, 14, 14, 3, 3, 1, 1, 1, 1), 8, 8),
}
RUNGS: dict[str, dict[str, Any]] = {
    "cached": {"MIN_NUMEL": 2**62},
    "halo": {"MIN_NUMEL": 0, "pack_size_for": lambda *_: 1},
    "together": {"MIN_NUMEL": 0},
}
"""What each rung patches: the elements from which the CUDA kernels are used, and the pixels that they pack."""
REPEAT = measure.Repeat(min_samples=10, min_time_s=0.02, max_time_s=0.15)


def spectra(window: Conv2dProblem, q: int, p: int, slots: int, terms: int, device: torch.device) -> tuple[Tensor, ...]:
    """Spectra of inputs, weights and output gradients in float16, in one or two terms."""
    tensors = []
    for rows, blocks in ((window.rows_in, q), (p * window.taps, q), (window.rows_out, p)):
        values = torch.randn(slots, rows, 2, blocks, device=device)
        hi = values.half()
        tensors.append(hi if terms == 1 else torch.stack([hi, (values - hi).half()]))
    return tuple(tensors)


def calls(window: Conv2dProblem, x: Tensor, w: Tensor, dy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The spectral matmul and its gradients, by phase."""

    def weight() -> Tensor:
        return ops.reduce_split_k(ops.run_spectral_matmul_backward(dy, x, None, None, window, 1.0), torch.float32)

    y, dx = ops.output_spectrum_like(x, w, window), ops.input_spectrum_like(dy, w, window)
    return {
        "forward": partial(ops.run_spectral_matmul, x, w, y, window, backward_data=False),
        "backward_data": partial(ops.run_spectral_matmul, dy, w, dx, window, backward_data=True),
        "backward_weight": weight,
    }


def exact(window: Conv2dProblem, *spectra: Tensor) -> dict[str, Tensor]:
    """The same in float64."""
    x, w, dy = (one.double() if one.dim() == 4 else one.double().sum(0) for one in spectra)
    dx, dw = ops.spectral_matmul_backward(dy, x, w, window.pack())
    return {"forward": ops.spectral_matmul(x, w, window.pack()), "backward_data": dx, "backward_weight": dw}


def measured(
    name: str, window: Conv2dProblem, q: int, p: int, terms: int, time: Callable[[Callable[[], object]], Timing],
    copy_gbs: float, device: torch.device, slots: int = SLOTS,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each phase and rung."""
    x, w, dy = spectra(window, q, p, slots, terms, device)
    expected = exact(window, x, w, dy)
    for phase, call in calls(window, x, w, dy).items():
        read = {"forward": x, "backward_data": dy, "backward_weight": x}[phase]
        moved = read.nbytes + w.nbytes + (dy.nbytes if phase == "backward_weight" else call().nbytes)
        for rung, changed in RUNGS.items():
            halo._launch_for.cache_clear()
            with patch.multiple(halo, **changed):
                error = run.relative_error([call()], [expected[phase]])
                timing = time(call)
            yield {
                "workload": "windows", "layer": name, "phase": phase, "precision": "fp32" if terms == 2 else "tf32",
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
        for terms in (1, 2):
            for name, (window, q, p) in LAYERS.items():
                time = partial(clock.time, repeat=REPEAT)
                for row in measured(name, window, q, p, terms, time, copy_gbs, device):
                    rows.append(row)
                    shown = (row[key] for key in ("precision", "phase", "impl", "median_us", "rel_error"))
                    print(name, *shown, flush=True)
                torch.cuda.empty_cache()
    summary = beside_predictions(rows, "layer", "precision", "phase")
    print(results.write("ladder_windows", "cuda", rows, summary, asked, "ladder.windows"))


if __name__ == "__main__":
    main()
