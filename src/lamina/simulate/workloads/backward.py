"""The matrix products (implicit GEMM) of a convolution's backward passes, whose B has zeros too.

Spartan simulates the forward product only; these are beyond the paper. The gradient of a layer's output has the zeros
of the ReLU behind it, and the weights' gradient reads the same map as the forward product.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.errors import UnsupportedError
from lamina.simulate.workloads.convolutions import ConvolutionGemm
from lamina.spec import Phase
from lamina.spec.geometry import Conv2dGeometry


def backward(layer: ConvolutionGemm, phase: Phase) -> ConvolutionGemm:
    """The product of another phase of a forward convolution.

    ``backward_data``: ``dX[C, N H W] = W^T[C, M taps] B``, where B is im2col of the output's gradient [N, M, OH, OW]. A
    stride of s puts s - 1 zeros between its values. ``backward_weight``: ``dW[M, C taps] = dY[M, N OH OW] B``, where B
    is the transposed im2col of the layer's input.

    Raises:
        UnsupportedError: a transposed convolution, or one that is padded beyond its kernel.
    """
    if phase == Phase.FORWARD:
        return layer
    if layer.summed:
        raise UnsupportedError(f"{layer.layer}: the {phase} product of a transposed convolution is not simulated")
    window, (images, channels, height, width) = layer.window, layer.map
    if phase == Phase.BACKWARD_WEIGHT:
        return replace(layer, phase=phase, n=layer.k, k=layer.n)
    reach = [step * (size - 1) for step, size in zip(window.dilation, window.kernel, strict=True)]
    padding = [far - near for far, near in zip(reach, window.padding, strict=True)]
    if min(padding) < 0:
        raise UnsupportedError(
            f"{layer.layer}: the {phase} product is simulated with a padding of at most {reach}, "
            f"got {list(window.padding)}"
        )
    left, right = (
        (size + 2 * near - far - 1) % step
        for size, near, far, step in zip((height, width), window.padding, reach, window.stride, strict=True)
    )
    return replace(
        layer,
        phase=phase,
        m=channels // layer.groups,
        n=images * height * width,
        k=layer.m * window.taps,
        map=(images, layer.m * layer.groups, *window.positions(height, width)),
        window=Conv2dGeometry.of(window.kernel, padding=padding, dilation=window.dilation),
        spread=window.stride,
        ends=(left, right),
    )
