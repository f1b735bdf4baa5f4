"""Whole steps of the dissertation's kernels on the layers of table 7.3: table 7.4 and figure 7.5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lamina import run
from lamina.accelerate.methods.circulant import reference
from lamina.accelerate.papers.circulant_ladder.functional import kernels_for
from lamina.accelerate.papers.circulant_ladder.mapping import LIMIT
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS, PHASES, Kernels, Pass, Rung, step
from lamina.pipeline.reproduce.live.timing import Timer, one_thread
from lamina.pipeline.reproduce.measured.judging import Rows, Scope

Tensors = tuple[Tensor, ...]
Calls = dict[str, Callable[[], Tensors]]
STEPS = (*PHASES, "step")


@dataclass(frozen=True)
class Layer:
    """``rows`` of the matrix that multiplies; a convolution's are its pixels, with all inputs of a pixel side by side.

    How a convolution's matrix is gathered is the same for every contender and no part of any time.
    """

    name: str
    batch: int
    rows: int
    inputs: int
    outputs: int

    def tensors(self, k: int, device: torch.device) -> dict[str, Tensor]:
        """``x (n, q, k)``, ``w (p, q, k)`` and ``dy (n, p, k)``."""
        shapes = {"x": (self.rows, self.inputs), "w": (self.outputs // k, self.inputs), "dy": (self.rows, self.outputs)}
        torch.manual_seed(0)
        return {name: torch.randn(*shape, device=device).unflatten(1, (-1, k)) for name, shape in shapes.items()}


LAYERS = {
    layer.name: layer
    for layer in (
        Layer("A", 128, 128, 8192, 4096),
        Layer("B", 64, 64 * 14 * 14, 3 * 3 * 256, 512),
        Layer("C", 128, 128, 1024, 1024),
    )
}
"""Table 7.3."""

BLOCK_SIZES = (16, 32, 64)


def definition(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensors]:
    """The phases and the whole step by the method's definition."""
    x, w, dy = (tensors[name].to(dtype) for name in ("x", "w", "dy"))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = reference.linear(x.flatten(1), w, None, dy[0].numel())
    dx, dw = torch.autograd.grad(y, [x, w], dy.flatten(1))
    results = (y.detach().view_as(dy), dx, dw)
    return dict(zip(STEPS, (*((one,) for one in results), results), strict=True))


def rung_calls(rung: Rung, made: Kernels | None, tensors: dict[str, Tensor], limit: int = LIMIT) -> Calls:
    """A rung's phases, each of which starts with what the phases before it keep."""

    def phase_call(place: int) -> Callable[[], Tensors]:
        before = Pass(rung, made, tensors, limit)
        if rung.reuse:
            for phase in PHASES[:place]:
                before.run(phase)
        return lambda: (replace(before, kept=dict(before.kept)).run(PHASES[place]),)

    calls = {phase: phase_call(place) for place, phase in enumerate(PHASES)}
    return calls | {"step": lambda: tuple(step(rung, made, **tensors, limit=limit).values())}


SMALL = {
    layer.name: layer
    for layer in (
        Layer("A", 16, 16, 2048, 1024),
        Layer("B", 2, 2 * 14 * 14, 3 * 3 * 64, 128),
        Layer("C", 16, 16, 1024, 1024),
    )
}
"""Table 7.3 with a fourth of the inputs and outputs of A and B, and an eighth of the batch or less."""


def steps(scope: Scope) -> Rows:
    """Whole steps of the algorithm as written, of kernel fusion and of a dense product, in fp32.

    On a CPU the steps run in PyTorch operations in one thread. The time to gather a convolution's matrix is not
    included.

    Raises:
        CheckError: a result differs from the definition in float64.
    """
    timer, rows = Timer(scope), list[dict[str, Any]]()
    with run.precision_mode("fp32"), one_thread():
        for layer in (SMALL if scope.quick else LAYERS).values():
            for k in BLOCK_SIZES:
                tensors = layer.tensors(k, timer.device)
                calls = {"dense": dense_step(tensors)}
                made = kernels_for(tensors["x"])
                for name in ("as_written", "fusion"):
                    impl, call = f"ladder[rung={name},block_size={k}]", rung_calls(IMPLS[name], made, tensors)["step"]
                    exact = definition(tensors, torch.float64)["step"]
                    run.judge(run.relative_error([*call()], [*exact]), "fp32")
                    calls[impl] = call
                for impl, call in calls.items():
                    rows.append(
                        {
                            "workload": layer.name, "layer": layer.name, "phase": "step", "precision": "fp32",
                            "layout": "nchw", "impl": impl, "batch": layer.batch, "block_size": k,
                            **timer.columns(call),
                        }
                    )  # fmt: skip
    return rows


def dense_step(tensors: dict[str, Tensor]) -> Callable[[], Tensors]:
    """The three products of a step by the dense matrix, by the vendor library."""
    x, dy = tensors["x"].flatten(1), tensors["dy"].flatten(1)
    matrix = reference.dense_matrix(tensors["w"], dy.shape[1], x.shape[1])
    return lambda: (x @ matrix.T, dy @ matrix, dy.T @ x)
