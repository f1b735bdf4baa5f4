"""Tiles are such as kernels can be compiled for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.elimination.tiles import PROGRAMS, Tile, candidates, product_tile
from lamina.accelerate.tiling import power

sizes = st.integers(1, 100_000)


@given(sizes, sizes, sizes, st.sampled_from([2, 4]))
def test_a_tile_is_no_larger_than_the_product_fills(rows: int, columns: int, summed: int, itemsize: int) -> None:
    tile = product_tile(rows, columns, summed, itemsize)
    for side, size in ((tile.rows, rows), (tile.columns, columns), (tile.depth, summed)):
        assert 16 <= side <= max(16, power(size))
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    assert tile.splits == 1 or tiles * tile.splits <= PROGRAMS
    assert tile.splits == 1 or summed >= tile.splits * tile.depth
    assert Tile.unpack(tile.pack()) == tile


@pytest.mark.parametrize(("rows", "columns", "summed"), [(1, 4096, 4608), (128, 4096, 4608), (93312, 256, 1200)])
def test_candidates_differ_and_fit_shared_memory(rows: int, columns: int, summed: int) -> None:
    for itemsize in (2, 4):
        found = candidates(rows, columns, summed, itemsize)
        assert found[0] == product_tile(rows, columns, summed, itemsize)
        assert len(found) == len(set(found)) and 3 < len(found) < 80
        assert all((t.rows + t.columns) * t.depth * itemsize * t.stages <= 227 * 1024 for t in found)
