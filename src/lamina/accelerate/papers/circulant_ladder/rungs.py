"""The rungs: a block-circulant layer and its two gradients, from the algorithm as written to one fused kernel.

A layer is ``w (p, q, k)``, first columns of its blocks; ``x (n, q, k)`` and ``y (n, p, k)`` are rows of blocks. Each
phase is a function of tensors. The steps run in CUDA kernels, or without kernels in PyTorch operations. FFTs are the
library's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lamina.accelerate.papers.circulant_ladder import mapping as maps
from lamina.accelerate.papers.circulant_ladder import reference
from lamina.accelerate.papers.circulant_ladder.mapping import LIMIT, NATURAL, ROLES, Axes, Phase, Sizes
from lamina.accelerate.runtime.nvrtc import Arguments, Kernel, Launchable

SOURCE = Path(__file__).with_name("kernels.cu")
NAMES = ("reorder", "multiply", "sum_real", "sum_complex", "multiply_o1", "multiply_o2", "fused")
FACTORS: dict[Phase, tuple[str, str]] = {
    "forward": ("x", "w"),
    "backward_data": ("dy", "w"),
    "backward_weight": ("dy", "x"),
}
"""What each phase multiplies; in the gradients the second one is transposed."""
PHASES: tuple[Phase, ...] = tuple(FACTORS)

_AXES = {"x": "nq", "w": "pq", "dy": "np"}

Plan = Literal["table", "o1", "o2", "o2_argued", "fusion"]
Kernels = Mapping[str, Launchable]


@dataclass(frozen=True)
class Rung:
    """One version of the layer; each is the one before it and what ``idea`` says."""

    name: str
    idea: str
    plan: Plan = "table"
    sum_first: bool = True
    conjugate: bool = True
    reuse: bool = True


RUNGS = (
    Rung("as_written", "multiply, transform back, sum, and reorder for gradients", "table", False, False, False),
    Rung("sum_first", "sum the spectra, so that only results are transformed back", "table", True, False, False),
    Rung("no_reorder", "gradients multiply by the conjugate instead of reordering", "table", True, True, False),
    Rung("reused_spectra", "gradients find the spectra that the forward pass made"),
    Rung("o1_sum", "full warps sweep over chunks along the summed axis, brought innermost", "o1"),
    Rung("o2_sum", "threads that share a chunk form a block; the weight as p x k x q, as printed", "o2"),
    Rung("o2_argued_sum", "as o2_sum, with the weight as q x p x k, which makes the distance 1", "o2_argued"),
    Rung("fusion", "multiply and sum in one kernel, nothing in between, no reorganisation", "fusion"),
)
"""The ladder, from the ground up."""

IMPLS: Mapping[str, Rung] = {
    name: next(rung for rung in RUNGS if rung.name == of)
    for name, of in {
        "as_written": "as_written",
        "sum_first": "sum_first",
        "no_reorder": "no_reorder",
        "reuse": "reused_spectra",
        "o1": "o1_sum",
        "o2": "o2_sum",
        "o2_argued": "o2_argued_sum",
        "fusion": "fusion",
    }.items()
}
"""The versions by the names that ``Circulant(impl=...)`` takes."""


def kernels(make: Callable[[str, str], Launchable] = Kernel) -> Kernels:
    """The kernels of the ladder, each compiled at its first launch.

    Args:
        make: from a source and a function's name to the kernel; `lamina.testing.cuda_on_cpu.KernelOnCpu` runs it on a
            CPU.
    """
    source = SOURCE.read_text(encoding="utf-8")
    return {name: make(source, name) for name in NAMES}


@dataclass
class Pass:
    """One pass through a layer: its tensors, and what a rung keeps of them.

    ``kernels`` is None where the steps run in PyTorch operations. ``limit`` is of threads in a block.
    """

    rung: Rung
    kernels: Kernels | None
    tensors: dict[str, Tensor]
    limit: int = LIMIT
    kept: dict[str, Tensor] = field(default_factory=dict)

    def spectrum(self, name: str, transposed: bool = False) -> Tensor:
        """The spectra of a tensor's blocks, of the transposed ones' first columns if the rung reorders for them."""
        if name in self.kept:
            return self.kept[name]
        blocks = self.tensors[name]
        if transposed and not self.rung.conjugate:
            blocks = reorder(self.kernels, blocks) if self.kernels else reference.reorder(blocks)
        found: Tensor = torch.fft.rfft(blocks)
        if self.rung.reuse:
            self.kept[name] = found
        return found

    def run(self, phase: Phase) -> Tensor:
        """The result of a phase: ``y (n, p, k)``, ``dx (n, q, k)`` or ``dw (p, q, k)``."""
        one, other = FACTORS[phase]
        a, b = self.spectrum(one), self.spectrum(other, phase != "forward")
        k = self.tensors[one].shape[-1]
        size = dict(zip(_AXES[one] + _AXES[other], (*a.shape[:2], *b.shape[:2]), strict=True))
        sizes = Sizes(**size, f=k // 2 + 1)
        if self.kernels is None:
            return in_operations(self.rung, phase, a, b, k)
        return PLANS[self.rung.plan](_OnGpu(self.rung, self.kernels, self.limit), phase, sizes, a, b, k)


@dataclass(frozen=True)
class _OnGpu:
    """What a plan needs to launch kernels."""

    rung: Rung
    kernels: Kernels
    limit: int


def in_operations(rung: Rung, phase: Phase, a: Tensor, b: Tensor, k: int) -> Tensor:
    """A phase from the spectra of its factors, in PyTorch operations."""
    m1, m2, m3 = ROLES[phase]
    natural, conjugate = NATURAL[phase], rung.conjugate and phase != "forward"
    layouts = natural
    if rung.plan == "o1":
        layouts = (m3, m1, "f"), (m2, m1, "f")
    elif rung.plan in ("o2", "o2_argued"):
        layouts = natural[0], o2_layout(phase, rung.plan)
    if rung.plan == "fusion":
        return inverse(reference.products(phase, a, b, conjugate, layouts, (m3, m2, "f")), k)
    out: Axes = ("n", "p", "q", "f") if rung.plan == "table" else (m3, m2, m1, "f")
    products = reference.products(phase, a, b, conjugate, layouts, out)
    if rung.sum_first:
        return inverse(reference.summed(phase, products, out), k)
    return reference.summed(phase, inverse(products, k), out)


def step(
    rung: Rung, kernels: Kernels | None, x: Tensor, w: Tensor, dy: Tensor, limit: int = LIMIT
) -> dict[Phase, Tensor]:
    """All three phases, with what one keeps for the others."""
    one = Pass(rung, kernels, {"x": x, "w": w, "dy": dy}, limit)
    return {phase: one.run(phase) for phase in PHASES}


def reorder(kernels: Kernels, blocks: Tensor) -> Tensor:
    """Each block ``v[t]`` as ``v[-t mod k]``."""
    out = torch.empty_like(blocks)
    k = blocks.shape[-1]
    kernels["reorder"].launch((blocks.numel() // k,), (k,), [blocks, out])
    return out


def by_table(one: _OnGpu, phase: Phase, sizes: Sizes, a: Tensor, b: Tensor, k: int) -> Tensor:
    """Every product ``(n, p, q, k')`` by itself, then their sums: before or after they are transformed back."""
    conjugate = one.rung.conjugate and phase != "forward"
    products = a.new_empty(sizes.n, sizes.p, sizes.q, sizes.f)
    launch = maps.table_multiply(phase, sizes, one.limit)
    strides = [chunks(sizes, axes, "qpn") for axes in NATURAL[phase]]
    args: Arguments = [a, b, products, int(conjugate), *strides[0], *strides[1]]
    one.kernels["multiply"].launch(launch.grid, launch.block, args)
    layout = ("n", "p", "q", "f")
    if one.rung.sum_first:
        return inverse(summed(one, phase, sizes, layout, products), k)
    back = inverse(products, k)
    return summed(one, phase, Sizes(sizes.n, sizes.p, sizes.q, k), layout, back)


def by_o1(one: _OnGpu, phase: Phase, sizes: Sizes, a: Tensor, b: Tensor, k: int) -> Tensor:
    """Algorithms 6 and 8: the summed axis is brought next to the innermost in both factors and in the products."""
    m1, m2, m3 = ROLES[phase]
    a = reference.arranged(a, NATURAL[phase][0], (m3, m1, "f"))
    b = reference.arranged(b, NATURAL[phase][1], (m2, m1, "f"))
    products = a.new_empty(sizes[m3], sizes[m2], sizes[m1], sizes.f)
    launch = maps.o1(phase, sizes, one.limit)
    args: Arguments = [a, b, products, sizes[m1], sizes[m2], sizes.f, int(phase != "forward")]
    one.kernels["multiply_o1"].launch(launch.grid, launch.block, args, launch.shared)
    return inverse(summed(one, phase, sizes, (m3, m2, m1, "f"), products), k)


def by_o2(one: _OnGpu, phase: Phase, sizes: Sizes, a: Tensor, b: Tensor, k: int) -> Tensor:
    """Algorithms 7 and 8: only the forward pass's weight is reorganised."""
    m1, m2, m3 = ROLES[phase]
    a_axes, b_axes = NATURAL[phase][0], o2_layout(phase, one.rung.plan)
    b = reference.arranged(b, NATURAL[phase][1], b_axes)
    a_strides, b_strides = sizes.strides(a_axes), sizes.strides(b_axes)
    products = a.new_empty(sizes[m3], sizes[m2], sizes[m1], sizes.f)
    launch = maps.o2(phase, sizes, one.limit)
    strides = [a_strides[m1], a_strides[m3], b_strides[m1], b_strides[m2], b_strides["f"]]
    args: Arguments = [a, b, products, sizes[m2], int(phase != "forward"), *strides]
    one.kernels["multiply_o2"].launch(launch.grid, launch.block, args, launch.shared)
    return inverse(summed(one, phase, sizes, (m3, m2, m1, "f"), products), k)


def by_fusion(one: _OnGpu, phase: Phase, sizes: Sizes, a: Tensor, b: Tensor, k: int) -> Tensor:
    """Algorithm 9: from the spectra of the factors to those of the result in one kernel."""
    m1, m2, m3 = ROLES[phase]
    out = a.new_empty(sizes[m3], sizes[m2], sizes.f)
    launch = maps.fusion(phase, sizes, one.limit)
    a_axes, b_axes = NATURAL[phase]
    strides = [*chunks(sizes, a_axes, m1 + m3), *chunks(sizes, b_axes, m1 + m2)]
    args: Arguments = [a, b, out, sizes[m1], sizes[m2], int(phase != "forward"), *strides]
    one.kernels["fused"].launch(launch.grid, launch.block, args, launch.shared)
    return inverse(out, k)


PLANS: dict[Plan, Callable[[_OnGpu, Phase, Sizes, Tensor, Tensor, int], Tensor]] = {
    "table": by_table,
    "o1": by_o1,
    "o2": by_o2,
    "o2_argued": by_o2,
    "fusion": by_fusion,
}


def o2_layout(phase: Phase, plan: Plan) -> Axes:
    """How O2 wants the second factor: forward ``p x k' x q`` as printed, or ``q x p x k'`` as its reason asks."""
    if phase != "forward":
        return NATURAL[phase][1]
    return ("q", "p", "f") if plan == "o2_argued" else ("p", "f", "q")


def summed(one: _OnGpu, phase: Phase, sizes: Sizes, layout: Axes, products: Tensor) -> Tensor:
    """Sums of products along M1, ``(M3, M2, f)``; ``sizes`` has as many numbers in a chunk as they have."""
    m1, m2, m3 = ROLES[phase]
    out = products.new_empty(sizes[m3], sizes[m2], sizes.f)
    launch = maps.table_sum(phase, sizes, one.limit)
    stride, x, y = chunks(sizes, layout, m1 + m2 + m3)
    name = "sum_complex" if products.is_complex() else "sum_real"
    one.kernels[name].launch(launch.grid, launch.block, [products, out, sizes[m1], stride, x, y])
    return out


def inverse(spectra: Tensor, k: int) -> Tensor:
    """The blocks of ``k`` numbers that have these spectra."""
    blocks: Tensor = torch.fft.irfft(spectra, k)
    return blocks


def chunks(sizes: Sizes, layout: Axes, axes: str) -> list[int]:
    """Chunks between neighbours along each of some axes; 0 along one that the tensor does not have."""
    strides = sizes.strides(layout)
    return [strides.get(axis, 0) // sizes.f for axis in axes]
