"""Products of the backward passes: their values are those of autograd, their zeros those that are read."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina import build
from lamina.build.models import ZOO
from lamina.errors import UnsupportedError
from lamina.simulate.workloads import ConvolutionGemm, backward, convolutions
from lamina.spec import Phase
from lamina.spec.geometry import Conv2dGeometry


@st.composite
def layers(draw: Any) -> ConvolutionGemm:
    """A small convolution of any geometry that pads no further than its kernel reaches."""
    kernel, dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3))), draw(st.integers(1, 2))
    padding = [draw(st.integers(0, dilation * (size - 1))) for size in kernel]
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    window = Conv2dGeometry.of(kernel, stride, padding, (dilation, dilation))
    groups, images = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    each, made = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    height, width = (draw(st.integers(5, 8)) for _ in range(2))
    n = images * window.positions(height, width)[0] * window.positions(height, width)[1]
    return ConvolutionGemm(
        "conv", made, n, each * window.taps, groups, (images, each * groups, height, width), window
    )  # fmt: skip


def gradients(layer: ConvolutionGemm, x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> Any:
    window: Any = {
        "stride": layer.window.stride, "padding": layer.window.padding, "dilation": layer.window.dilation,
        "groups": layer.groups,
    }  # fmt: skip
    y = F.conv2d(x.requires_grad_(), weight.requires_grad_(), **window)
    return torch.autograd.grad(y, (x, weight), dy)


@given(layers(), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_what_a_product_reads_decides_where_gradients_are(layer: ConvolutionGemm, seed: int) -> None:
    """With positive operands, a gradient is positive exactly where its column of B has a non-zero; sums count them."""
    random = np.random.default_rng(seed)
    x = random.random(layer.map) < 0.5
    made = layer.m * layer.groups
    dy = random.random((layer.map[0], made, *layer.window.positions(*layer.map[2:]))) < 0.5
    weight = torch.ones(made, layer.map[1] // layer.groups, *layer.window.kernel, dtype=torch.float64)
    dx, _ = gradients(layer, torch.ones(layer.map, dtype=torch.float64), weight, torch.from_numpy(dy).double())
    data = backward(layer, Phase.BACKWARD_DATA)
    assert data.m == layer.map[1] // layer.groups and data.map == dy.shape
    for group in range(layer.groups):
        counts = data.columns(dy, group).sum(axis=0)
        assert counts.shape == (data.n,)
        own = dx[:, group * data.m].flatten()  # every channel of a group has the same sum, as all weights are one
        np.testing.assert_array_equal(counts, own.numpy())
    every = torch.ones(dy.shape, dtype=torch.float64)
    _, dw = gradients(layer, torch.from_numpy(x).double(), weight, every)
    weights = backward(layer, Phase.BACKWARD_WEIGHT)
    assert (weights.m, weights.n, weights.k) == (layer.m, layer.k, layer.n)
    for group in range(layer.groups):
        counts = weights.columns(x, group).sum(axis=0)
        np.testing.assert_array_equal(counts, dw[group * layer.m].flatten().numpy())


@given(layers())
@settings(max_examples=40, deadline=None)
def test_a_product_s_fraction_inside_is_that_of_a_map_of_ones(layer: ConvolutionGemm) -> None:
    data = backward(layer, Phase.BACKWARD_DATA)
    ones = data.columns(np.ones(data.map, dtype=np.bool_))
    assert ones.shape == (data.k, data.n)
    assert data.inside == pytest.approx(ones.mean())


@given(layers())
@settings(max_examples=20, deadline=None)
def test_columns_are_chosen_as_from_the_whole(layer: ConvolutionGemm) -> None:
    random = np.random.default_rng(0)
    for phase in Phase:
        product = backward(layer, phase)
        mask = random.random(product.map) < 0.5
        some = range(0, product.n, 2)
        np.testing.assert_array_equal(product.columns(mask, 0, some), product.columns(mask)[:, some])


@pytest.mark.parametrize("name", ["alexnet", "resnet18"])
def test_all_phases_have_the_operations_of_their_layers(name: str) -> None:
    resolved = {each.name: each for each in build.from_zoo(ZOO[name]).resolve(2)}
    for layer in convolutions(resolved.values()):
        weights = backward(layer, Phase.BACKWARD_WEIGHT)
        assert weights.operations == layer.operations == resolved[layer.layer].cost(Phase.BACKWARD_WEIGHT).flops
        data = backward(layer, Phase.BACKWARD_DATA)
        useful = round(data.operations * data.inside)  # without padding and what a stride puts between values
        assert useful == round(layer.operations * layer.inside)


def test_forward_is_the_layer_itself_and_the_rest_is_refused() -> None:
    layer = ConvolutionGemm("conv", 2, 64, 3, 1, (1, 3, 8, 8), Conv2dGeometry.of((1, 1), padding=(1, 1)))
    assert backward(layer, Phase.FORWARD) is layer
    with pytest.raises(UnsupportedError, match=r"a padding of at most \[0, 0\], got \[1, 1\]"):
        backward(layer, Phase.BACKWARD_DATA)
    summed = ConvolutionGemm("up", 8, 64, 3, 1, (1, 3, 8, 8), Conv2dGeometry(), summed=True)
    with pytest.raises(UnsupportedError, match="transposed"):
        backward(summed, Phase.BACKWARD_WEIGHT)
