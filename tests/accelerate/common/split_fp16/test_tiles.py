import pytest

from lamina.accelerate.common.split_fp16 import tiles
from lamina.accelerate.common.tiling import MULTIPROCESSORS, next_power_of_2

SIZES = [1, 3, 16, 64, 96, 100, 256, 1000]


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("rows", [1, 50, 10**6])
def test_tiles_are_valid_for_tensor_cores_and_fit_shared_memory(rows: int, terms: int) -> None:
    for one in SIZES:
        for other in SIZES:
            for make in (tiles.conv_tile, tiles.backward_weight_tile):
                tile = make(rows, one, other, terms)
                sides = tile.block_m, tile.block_n, tile.block_k
                assert all(side >= 16 and side == next_power_of_2(side) for side in sides)
                assert 2 * terms * tile.block_k * (tile.block_m + tile.block_n) * tile.num_stages <= 220 * 1024


def test_block_k_pads_a_tap_least() -> None:
    assert [tiles.block_k_of(summed) for summed in (3, 16, 48, 64, 96, 100, 256)] == [16, 16, 16, 64, 32, 16, 64]


@pytest.mark.parametrize("sizes", [(5, 12544, 73728), (72, 196, 1179648), (1, 1, 16), (3, 0, 16)])
def test_split_k_fills_the_gpu_without_empty_splits(sizes: tuple[int, int, int]) -> None:
    num_tiles, iterations, numel = sizes
    for terms in (1, 2):
        split_k = tiles.split_k_for(num_tiles, iterations, numel, tiles.Tile(128, 64, 32), terms)
        assert 1 <= split_k <= max(1, iterations)
    if iterations > 10000:
        assert num_tiles * split_k > 0.9 * MULTIPROCESSORS * -(-num_tiles * split_k // MULTIPROCESSORS)
