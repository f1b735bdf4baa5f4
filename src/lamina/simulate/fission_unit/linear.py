"""The products of fully connected layers, in the form of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from lamina.simulate.workloads import ConvolutionGemm
from lamina.spec.geometry import Conv2dGeometry
from lamina.spec.layers.linear import Linear
from lamina.spec.network import ResolvedLayer


def fully_connected(layers: Iterable[ResolvedLayer]) -> tuple[ConvolutionGemm, ...]:
    """The products of all fully connected layers among resolved layers, as 1 x 1 convolutions of 1 x 1 maps.

    ``m`` output features, ``n`` rows of the batch (all axes but the last, unless ``spatial``), ``k`` input features.
    """
    return tuple(_gemm(each, each.layer) for each in layers if isinstance(each.layer, Linear))


def _gemm(resolved: ResolvedLayer, layer: Linear) -> ConvolutionGemm:
    (x,) = resolved.inputs
    rows, features = (x[0], prod(x[1:])) if layer.spatial else (prod(x[:-1]), x[-1])
    return ConvolutionGemm(
        resolved.name, layer.out_features, rows, features, 1, (rows, features, 1, 1), Conv2dGeometry()
    )
