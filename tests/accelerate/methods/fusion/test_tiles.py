"""Tiles fill tensor cores, cover the work, and leave no multiprocessor idle that need not be."""

from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.common.tiling import MULTIPROCESSORS, SHARED_MEMORY
from lamina.accelerate.methods.fusion.tiles import linear_tile, pixel_tile, row_tile

SIZE = st.integers(1, 10_000)


def is_power(side: int) -> bool:
    return side > 0 and side & (side - 1) == 0


@given(SIZE, SIZE, SIZE, st.sampled_from([2, 4]))
def test_product_tiles_suit_tensor_cores(rows: int, columns: int, summed: int, itemsize: int) -> None:
    tile = linear_tile(rows, columns, summed, itemsize)
    for side in (tile.block_m, tile.block_n, tile.block_k):
        assert is_power(side) and side >= 16
    # Both operands, three times, and what a multiprocessor has of shared memory.
    assert tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k * itemsize <= SHARED_MEMORY
    programs = -(-rows // tile.block_m) * -(-columns // tile.block_n) * tile.split_k
    assert tile.split_k == 1 or programs <= MULTIPROCESSORS


def test_a_wide_layer_of_a_small_batch_splits_its_sum() -> None:
    tile = linear_tile(128, 4096, 9216, 4)
    assert 128 <= -(-128 // tile.block_m) * -(-4096 // tile.block_n) * tile.split_k <= MULTIPROCESSORS
    assert linear_tile(8192, 8192, 64, 2).split_k == 1


@given(SIZE, SIZE, st.booleans())
def test_passes_cover_their_work_without_much_beyond(pixels: int, channels: int, last: bool) -> None:
    tile = pixel_tile(pixels, channels, last)
    assert is_power(tile.pixels) and is_power(tile.channels) and tile.pixels * tile.channels <= 1024
    if not last and pixels > 64:
        assert -(-pixels // tile.pixels) * tile.pixels <= pixels + 64
    down = row_tile(pixels, channels)
    assert is_power(down.pixels) and is_power(down.channels)
    assert down.pixels <= 128 and down.channels <= 32
