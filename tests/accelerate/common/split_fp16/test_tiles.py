import pytest

from lamina.accelerate.common.split_fp16 import tiles
from lamina.accelerate.common.tiling import MULTIPROCESSORS, next_power_of_2

SIZES = [1, 3, 16, 64, 96, 100, 256, 1000]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rows", [1, 50, 10**6])
def test_tiles_are_what_tensor_cores_take_and_what_memory_holds(rows: int, parts: int) -> None:
    for one in SIZES:
        for other in SIZES:
            for tile in (tiles.product_tile(rows, one, other, parts), tiles.gradient_tile(rows, one, other, parts)):
                sides = tile.rows, tile.columns, tile.depth
                assert all(side >= 16 and side == next_power_of_2(side) for side in sides)
                assert 2 * parts * tile.depth * (tile.rows + tile.columns) * tile.stages <= 220 * 1024


def test_a_step_leaves_as_little_of_a_tap_empty_as_can_be() -> None:
    assert [tiles.depth_of(summed) for summed in (3, 16, 48, 64, 96, 100, 256)] == [16, 16, 16, 64, 32, 16, 64]


@pytest.mark.parametrize("of", [(5, 12544, 73728), (72, 196, 1179648), (1, 1, 16), (3, 0, 16)])
def test_shares_fill_the_gpu_and_no_share_is_empty(of: tuple[int, int, int]) -> None:
    count, steps, numel = of
    for parts in (1, 2):
        number = tiles.shares(count, steps, numel, tiles.Tile(128, 64, 32), parts)
        assert 1 <= number <= max(1, steps)
    if steps > 10000:
        assert count * number > 0.9 * MULTIPROCESSORS * -(-count * number // MULTIPROCESSORS)
