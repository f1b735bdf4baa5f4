"""What each contender runs in each phase of the layers of table 7.3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.accelerate.methods.circulant import functional, reference
from lamina.accelerate.papers.circulant_ladder.mapping import LIMIT
from lamina.accelerate.papers.circulant_ladder.rungs import RUNGS, kernels
from lamina.pipeline.reproduce.live.ladder import STEPS, Calls, Layer, Tensors, definition, rung_calls
from lamina.testing.cuda_on_cpu import kernel_class


@dataclass(frozen=True)
class Contender:
    """One way to compute a layer: of each phase, and of all, what to call and the exact results in float64."""

    impl: str
    precision: str
    calls: Calls
    exact: dict[str, Tensors]


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
