"""Tiles are such as kernels can be compiled for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.common.tiling import MULTIPROCESSORS, next_power_of_2
from lamina.accelerate.methods.elimination.tiles import Tile, candidates, linear_tile, product_tile
from lamina.errors import UsageError

sizes = st.integers(1, 100_000)


@given(sizes, sizes, sizes, st.sampled_from([2, 4]), st.booleans())
def test_a_tile_is_no_larger_than_the_product_fills(
    rows: int, columns: int, summed: int, itemsize: int, tf32x3: bool
) -> None:  # fmt: skip
    tile = product_tile(rows, columns, summed, itemsize, tf32x3)
    assert tile.shared_bytes(itemsize) <= 227 * 1024
    for side, size in ((tile.block_m, rows), (tile.block_n, columns), (tile.block_k, summed)):
        assert 16 <= side <= max(16, next_power_of_2(size))
    tiles = -(-rows // tile.block_m) * -(-columns // tile.block_n)
    assert tile.split_k == 1 or tiles * tile.split_k <= MULTIPROCESSORS
    assert tile.split_k == 1 or summed >= tile.split_k * tile.block_k
    assert Tile.unpack(tile.pack()) == tile


@pytest.mark.parametrize(("rows", "columns", "summed"), [(1, 4096, 4608), (128, 4096, 4608), (93312, 256, 1200)])
def test_candidates_differ_and_fit_shared_memory(rows: int, columns: int, summed: int) -> None:
    for itemsize in (2, 4):
        found = candidates(rows, columns, summed, itemsize)
        assert found[0] == product_tile(rows, columns, summed, itemsize)
        assert len(found) == len(set(found)) and 3 < len(found) < 160
        assert all((t.block_m + t.block_n) * t.block_k * itemsize * t.num_stages <= 227 * 1024 for t in found)


def test_one_row_of_a_linear_layer_needs_no_tensor_cores() -> None:
    assert linear_tile(1, 4096, 4608, 2).block_m == 1 and linear_tile(2, 4096, 4608, 2).block_m == 16
    assert candidates(1, 4096, 4608, 2, linear=True)[0] == linear_tile(1, 4096, 4608, 2)
    with pytest.raises(UsageError, match="block_n to be a power of two of at least 1, got 3"):
        Tile(1, 3, 512)


def test_the_widest_tile_is_for_many_programs() -> None:
    assert product_tile(93312, 256, 1200, 2).block_n == 256
    assert product_tile(93312, 256, 1200, 4, tf32x3=True).block_n == product_tile(21632, 256, 1728, 2).block_n == 128
