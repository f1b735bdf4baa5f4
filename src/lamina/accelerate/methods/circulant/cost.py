"""The cost model of block-circulant layers: a roofline over the stages of a step.

In the frequency domain a step transforms inputs and gradients block by block (a product with the ``k x k`` basis of the
discrete Fourier transform), multiplies spectra, and transforms back. Spectra are pairs of float16 (``hi`` and ``lo``),
so that each element of one takes 4 bytes; float32 layers multiply three times. The model knows nothing of how well a
kernel's tiles fit: of the published layers, those with one block of channels and many positions are predicted too
fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lamina.accelerate.select import DENSE, LayerCall
from lamina.accelerate.select.cost import PRODUCT_US, CostModel, Gemm, Launch, gemm, precision_of

SPECTRUM_BYTES = 4
"""Of one element of a block's spectrum."""

PRODUCTS = {"fp32": 3, "fp64": 3}
"""Products of float16 pairs by precision, elsewhere 1: three give float32's accuracy."""

MATERIALIZED: dict[str, tuple[float, float]] = {"fp32": (3, 2.0), "fp64": (3, 2.0), "tf32": (2, 1.5)}
"""By precision, float16 products of a materialized convolution, and its bytes over those of the dense one."""


def times_us(dense: nn.Module, block_size: int, call: LayerCall, model: CostModel) -> dict[str, float]:
    """Predicted microseconds of a step by implementation, the dense layer's under ``dense``.

    Args:
        dense: the layer that is replaced.
        block_size: of its replacement.
        call: the layer's inputs.
        model: of the machine, which has this package's kernels.

    Raises:
        UnsupportedError: there is no cost model for the layer.
    """
    sizes, precision = gemm(dense, call), precision_of(call)
    taps = dense.weight[0, 0].numel()  # type: ignore[index]
    stages = spectral(sizes, taps, block_size, model.training, PRODUCTS.get(precision, 1))
    found = {
        DENSE: model.time_us(sizes.launches(model.training), precision),
        "kernel": model.time_us(stages, precision),
    }
    if not isinstance(dense, nn.Linear):
        found["materialized"] = model.time_us(materialized(sizes, model.training, precision), precision)
    return found


def spectral(sizes: Gemm, taps: int, block_size: int, training: bool, factor: int) -> Sequence[Launch]:
    """The kernels of a step in the frequency domain.

    Args:
        sizes: of the dense layer.
        taps: of its kernel; 1 for linear layers.
        block_size: ``k``.
        training: whether the step has a backward pass.
        factor: float16 products for each one of the definition.
    """
    channels = sizes.summed // taps
    inputs, outputs = (-(-each // block_size) * block_size for each in (channels, sizes.outputs))
    x = min(sizes.x // channels, sizes.rows * taps) * inputs  # strides may skip positions
    y = sizes.rows * outputs

    def transform(elements: int) -> Launch:
        traffic = elements * (sizes.itemsize + SPECTRUM_BYTES)
        return Launch(traffic, 2 * elements * block_size * factor, "fp16")

    # A product of two complex spectra of k/2 frequencies takes 4 real ones each.
    flops = 4 * sizes.rows * outputs * inputs * taps / block_size * factor
    weights = outputs * inputs * taps / block_size
    product = Launch((x + y + weights) * SPECTRUM_BYTES, flops, "fp16")
    forward = [transform(x), product, transform(y)]
    if not training:
        return forward
    return [*forward, transform(y), product, *([product, transform(x)] if sizes.x_gradient else [])]


def materialized(sizes: Gemm, training: bool, precision: str) -> Sequence[Launch]:
    """The kernels of a step that convolves with the materialized matrix in float16 products."""
    factor, traffic = MATERIALIZED.get(precision, (1, 1.5))
    moved = (sizes.x + sizes.y + sizes.weights) * sizes.itemsize * traffic
    product = Launch(moved, sizes.flops * factor, "fp16", PRODUCT_US)
    # The matrix is built, and its gradient is summed over each block.
    return [product] * sizes.phases(training) + [Launch(sizes.weights * 6)] * (4 if training else 1)
