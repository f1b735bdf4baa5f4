"""Convolutions over the channels that live in each image, against plain PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.activation_sparsity import ops
from lamina.accelerate.methods.activation_sparsity.row_union import ops as living
from lamina.accelerate.methods.activation_sparsity.tiles import Tile, columns_per_list, living_tile
from lamina.accelerate.methods.activation_sparsity.window import Window

pytestmark = [pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")]

LAYOUTS = [torch.contiguous_format, torch.channels_last]
WINDOWS = [Window(3, 2, 1, 1, 1, 0), Window(2, 2, 2, 1, 0, 1, 1, 2), Window()]
KINDS = [(torch.float32, (2, 2)), (torch.float32, (1, 2)), (torch.float32, (1, 1)), (torch.bfloat16, None)]
"""Numbers, and the halves that float32 activations and weights are the sums of."""
NARROW = Tile(16, 16, 16)


def dead_channels(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images of which some have few living channels, one all of them and one none."""
    x = torch.randn(shape)
    x[0, 1:-1], x[-1] = 0.0, 0.0
    x[:, :, 0, 0] = 0.0
    return x.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_living_channels_stand_side_by_side(layout: torch.memory_format) -> None:
    x = dead_channels(3, 21, 5, 7).contiguous(memory_format=layout)
    found = living.living(x, 16)
    for image, length in enumerate([2, 21, 0]):
        channels = (x[image] != 0).flatten(1).any(1).nonzero().flatten()
        assert found.lengths[image] == length == len(channels)
        assert torch.equal(found.lists[image, :length].long(), channels)
        near = found.near[0, image, :, : -(-length // 16) * 16]
        assert torch.equal(near[:, :length], x[image].flatten(1)[channels].mT)
        assert not near[:, length:].any(), "zeros up to the depth of a tile"


@pytest.mark.parametrize("place", range(len(WINDOWS)), ids=lambda place: str(WINDOWS[place]))
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: str(KINDS[kind]))
def test_products(kind: int, place: int) -> None:
    (dtype, parts), window = KINDS[kind], WINDOWS[place]
    layout = LAYOUTS[(kind + place) % 2]  # each with every window and every kind
    x = dead_channels(3, 21, 5, 7, dtype=dtype).contiguous(memory_format=layout)
    weight, bias = torch.randn(19, 21, *window.pack()[:2]).to(dtype), torch.randn(19).to(dtype)
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    exact = F.conv2d(x.double(), weight.double(), bias.double(), (sh, sw), (ph, pw), (dh, dw))
    y = torch.empty(exact.shape, dtype=dtype).contiguous(memory_format=layout)
    living.product(ops.by_rows(weight, "row_union", "same"), bias, x, y, window, NARROW, parts)
    if parts in ((1, 2), (1, 1)):
        torch.testing.assert_close(y.double(), exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())
    else:
        torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


def test_who_has_a_list_of_its_own() -> None:
    large, window = torch.zeros(2, 3, 8, 8), Window(3, 3)
    assert living.takes(large, Window()) and living.takes(large[:1], window)
    # A matrix, and pixels too few for a list: tiles of columns have theirs.
    assert not living.takes(ops.matrix_as_map(torch.zeros(9, 100)), Window())
    assert not living.takes(torch.zeros(64, 3, 1, 1), Window())
    assert not living.takes(large[:, :, :, ::3], window), "pixels that are not evenly apart"
    assert (columns_per_list(2, 8, 8, Window()), columns_per_list(64, 1, 1, Window())) == (64, 0)


def test_uneven_pixels_are_multiplied_all_the_same() -> None:
    x, weight = dead_channels(2, 4, 5, 8)[..., ::2], torch.randn(3, 4, 2, 2)
    y = ops.product(ops.turned(weight), None, x, Window(2, 2), "row_union")
    torch.testing.assert_close(y, F.conv2d(x, weight), rtol=1e-5, atol=1e-5)


def test_tiles_are_within_their_sizes() -> None:
    for outputs, pixels in ((1, 1), (64, 49), (512, 784)):
        tile = living_tile(outputs, pixels)
        assert tile.outputs <= max(16, 2 * outputs) and tile.columns <= max(128, 2 * pixels)
