"""The layers that the ladder is climbed on, and what each contender runs in each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.accelerate.methods.circulant import functional, reference
from lamina.accelerate.papers.circulant_ladder.mapping import LIMIT
from lamina.accelerate.papers.circulant_ladder.rungs import PHASES, RUNGS, Kernels, Pass, Rung, kernels, step
from lamina.testing.cuda_on_cpu import kernel_class

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


@dataclass(frozen=True)
class Contender:
    """One way to compute a layer: of each phase, and of all, what to call and the exact results in float64."""

    impl: str
    precision: str
    calls: Calls
    exact: dict[str, Tensors]


def definition(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensors]:
    """The phases and the whole step by the method's definition."""
    x, w, dy = (tensors[name].to(dtype) for name in ("x", "w", "dy"))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = reference.linear(x.flatten(1), w, None, dy[0].numel())
    dx, dw = torch.autograd.grad(y, [x, w], dy.flatten(1))
    results = (y.detach().view_as(dy), dx, dw)
    return dict(zip(STEPS, (*((one,) for one in results), results), strict=True))


def rung_calls(rung: Rung, made: Kernels, tensors: dict[str, Tensor], limit: int) -> Calls:
    """A rung's phases, each of which starts with what the phases before it keep."""

    def phase_call(place: int) -> Callable[[], Tensors]:
        before = Pass(rung, made, tensors, limit)
        if rung.reuse:
            for phase in PHASES[:place]:
                before.run(phase)
        return lambda: (replace(before, kept=dict(before.kept)).run(PHASES[place]),)

    calls = {phase: phase_call(place) for place, phase in enumerate(PHASES)}
    return calls | {"step": lambda: tuple(step(rung, made, **tensors, limit=limit).values())}


def matmul(tensors: dict[str, Tensor], precision: str) -> Contender:
    """The paper's opponent: the dense matrix by the vendor's library."""
    x, dy = tensors["x"].flatten(1), tensors["dy"].flatten(1)
    matrix = reference.dense_matrix(tensors["w"], dy.shape[1], x.shape[1])
    calls = {
        "forward": lambda: (x @ matrix.T,),
        "backward_data": lambda: (dy @ matrix,),
        "backward_weight": lambda: (dy.T @ x,),
        "step": lambda: (x @ matrix.T, dy @ matrix, dy.T @ x),
    }
    wide = [one.double() for one in (x, dy, matrix)]
    results = wide[0] @ wide[2].T, wide[1] @ wide[2], wide[1].T @ wide[0]
    return Contender("dense", precision, calls, dict(zip(STEPS, (*((r,) for r in results), results), strict=True)))


def library(tensors: dict[str, Tensor], precision: str, exact: dict[str, Tensors]) -> Contender:
    """Lamina's own kernels for the layer."""
    x, w, dy = tensors["x"].flatten(1), tensors["w"], tensors["dy"].flatten(1)
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    k, outputs = w.shape[-1], dy.shape[1]

    def whole() -> Tensors:
        y = functional.linear(*leaves, out_features=outputs)
        return (y.detach(), *torch.autograd.grad(y, leaves, dy))

    calls: Calls = {
        "forward": lambda: (functional.linear(x, w, out_features=outputs),),
        "step": whole,
    }
    return Contender(f"circulant[block_size={k}]", precision, calls, exact)


def contenders(layer: Layer, k: int, device: torch.device, limit: int = LIMIT) -> Iterator[Contender]:
    """Dense and lamina's kernels in fp32 and, on a GPU, TF32; then the ladder, in fp32."""
    tensors = layer.tensors(k, device)
    exact = definition(tensors, torch.float64)
    for precision in ("fp32", "tf32") if device.type == "cuda" else ("fp32",):
        yield matmul(tensors, precision)
        yield library(tensors, precision, exact)
    made = kernels(kernel_class(device))
    for rung in RUNGS:
        impl = f"ladder[rung={rung.name},block_size={k}]"
        yield Contender(impl, "fp32", rung_calls(rung, made, tensors, limit), exact)
