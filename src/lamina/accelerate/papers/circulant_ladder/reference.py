"""The steps of each version in PyTorch operations, for float32 and float64 on any device.

Versions that differ in transforms, copies or intermediate products differ here too. Mappings of threads do not exist
here: ``o1`` and ``o2`` differ in their copies only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.accelerate.papers.circulant_ladder.mapping import NATURAL, ROLES, Axes, Phase


def reorder(blocks: Tensor) -> Tensor:
    """Each block ``v[t]`` as ``v[-t mod k]``: the first column of the transposed circulant matrix."""
    return blocks.flip(-1).roll(1, -1)


def products(phase: Phase, a: Tensor, b: Tensor, conjugate: bool, layouts: tuple[Axes, Axes], out: Axes) -> Tensor:
    """Products of spectra with the axes ``out``, summed along every axis that ``out`` lacks.

    Args:
        phase: of the layer.
        a, b: the two factors, in their natural layouts.
        conjugate: whether the second one is conjugated.
        layouts: the layouts that the factors are copied to first.
        out: the axes of the result.
    """
    a, b = (arranged(one, *layout) for one, *layout in zip((a, b), NATURAL[phase], layouts, strict=True))
    b = b.conj() if conjugate else b
    equation = f"{''.join(layouts[0])},{''.join(layouts[1])}->{''.join(out)}"
    result: Tensor = torch.einsum(equation, a, b)
    return result


def summed(phase: Phase, products: Tensor, layout: Axes) -> Tensor:
    """Sums along M1: ``(M3, M2, f)``, or time in the last axis."""
    m1, m2, m3 = ROLES[phase]
    left = [axis for axis in layout if axis != m1]
    sums = products.sum(layout.index(m1))
    return sums.permute([left.index(axis) for axis in (m3, m2, "f")])


def arranged(tensor: Tensor, axes: Axes, wanted: Axes) -> Tensor:
    """The tensor in another layout: a copy where that differs."""
    return tensor.permute([axes.index(axis) for axis in wanted]).contiguous()
