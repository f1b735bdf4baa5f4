"""Convolutions over the active channels of each image, against plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import ops
from lamina.accelerate.methods.activation_sparsity.im2col import matrix_as_map
from lamina.accelerate.methods.activation_sparsity.row_union.channels import ops as channels_ops
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, columns_per_list, compacted_conv_tile

pytestmark = [pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")]

LAYOUTS = [torch.contiguous_format, torch.channels_last]
WINDOWS = [Conv2dGeometry(3, 2, 1, 1, 1, 0), Conv2dGeometry(2, 2, 2, 1, 0, 1, 1, 2), Conv2dGeometry()]
OPERANDS = [(torch.float32, (2, 2)), (torch.float32, (1, 2)), (torch.float32, (1, 1)), (torch.bfloat16, None)]
"""Dtypes, and the float16 terms of float32 activations and weights."""
NARROW = Tile(16, 16, 16)


def with_dead_channels(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images with two, all and no active channels."""
    x = torch.randn(shape)
    x[0, 1:-1], x[-1] = 0.0, 0.0
    x[:, :, 0, 0] = 0.0
    return x.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_active_channels_are_compacted(layout: torch.memory_format) -> None:
    x = with_dead_channels(3, 21, 5, 7).contiguous(memory_format=layout)
    compacted = channels_ops.compact_channels(x, 16)
    for image, length in enumerate([2, 21, 0]):
        channels = (x[image] != 0).flatten(1).any(1).nonzero().flatten()
        assert compacted.lengths[image] == length == len(channels)
        assert torch.equal(compacted.lists[image, :length].long(), channels)
        values = compacted.values[0, image, :, : -(-length // 16) * 16]
        assert torch.equal(values[:, :length], x[image].flatten(1)[channels].mT)
        assert not values[:, length:].any(), "zero padding up to block_k"


@pytest.mark.parametrize("index", range(len(WINDOWS)), ids=lambda index: str(WINDOWS[index]))
@pytest.mark.parametrize("operands", range(len(OPERANDS)), ids=lambda operands: str(OPERANDS[operands]))
def test_products(operands: int, index: int) -> None:
    (dtype, terms), window = OPERANDS[operands], WINDOWS[index]
    layout = LAYOUTS[(operands + index) % 2]  # each with every window and every dtype
    x = with_dead_channels(3, 21, 5, 7, dtype=dtype).contiguous(memory_format=layout)
    weight, bias = torch.randn(19, 21, *window.pack()[:2]).to(dtype), torch.randn(19).to(dtype)
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    exact = F.conv2d(x.double(), weight.double(), bias.double(), (sh, sw), (ph, pw), (dh, dw))
    y = torch.empty(exact.shape, dtype=dtype).contiguous(memory_format=layout)
    channels_ops.product(ops.weight_rows(weight, "row_union", "same"), bias, x, y, window, NARROW, terms)
    if terms in ((1, 2), (1, 1)):
        torch.testing.assert_close(y.double(), exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())
    else:
        torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


def test_which_maps_have_a_channel_list_per_image() -> None:
    large, window = torch.zeros(2, 3, 8, 8), Conv2dGeometry(3, 3)
    assert channels_ops.is_supported(large, Conv2dGeometry()) and channels_ops.is_supported(large[:1], window)
    # A matrix, and images of too few pixels: each tile of columns has a row list.
    assert not channels_ops.is_supported(matrix_as_map(torch.zeros(9, 100)), Conv2dGeometry())
    assert not channels_ops.is_supported(torch.zeros(64, 3, 1, 1), Conv2dGeometry())
    assert not channels_ops.is_supported(large[:, :, :, ::3], window), "pixels without one constant stride"
    assert (columns_per_list(2, 8, 8, Conv2dGeometry()), columns_per_list(64, 1, 1, Conv2dGeometry())) == (64, 0)


def test_maps_without_a_constant_pixel_stride() -> None:
    x, weight = with_dead_channels(2, 4, 5, 8)[..., ::2], torch.randn(3, 4, 2, 2)
    y = ops.product(ops.transposed_weight(weight), None, x, Conv2dGeometry(2, 2), "row_union")
    torch.testing.assert_close(y, F.conv2d(x, weight), rtol=1e-5, atol=1e-5)


def test_tiles_fit_the_problem() -> None:
    for outputs, pixels in ((1, 1), (64, 49), (512, 784)):
        tile = compacted_conv_tile(outputs, pixels)
        assert tile.block_m <= max(16, 2 * outputs) and tile.block_n <= max(128, 2 * pixels)


@pytest.mark.parametrize(("impl", "terms"), [("row_union", (2, 2)), ("row_union_fp16", (1, 2))])
def test_fp16_rounds_activations_to_one_term(impl: str, terms: tuple[int, int]) -> None:
    x, weight = with_dead_channels(3, 21, 5, 7), torch.randn(19, 21, 3, 3)
    at, window = ops.weight_rows(weight, impl, "same"), Conv2dGeometry(3, 3)
    expected = channels_ops.product(at, None, x, torch.empty(3, 19, 3, 5), window, None, terms)
    assert torch.equal(ops.product(at, None, x, window, impl), expected)
    exact = F.conv2d(x.double(), weight.double())
    error = (expected - exact).abs().max() / exact.abs().max()
    assert (error < 1e-6) == (terms == (2, 2))
