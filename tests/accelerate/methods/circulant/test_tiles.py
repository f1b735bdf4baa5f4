"""Tiles that tensor cores can take, whatever the sizes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.circulant.tiles import (
    backward_weight_tile,
    linear_tile,
    lstm_step_tile,
    materialized_linear_tile,
    num_weight_tiles,
    product_tile,
    scaled_fp16_pays,
    split_k_for,
    steps_of,
    transform_tile,
)

SIZE = st.integers(1, 100_000)


def powers_of_two(*sizes: int) -> bool:
    return all(size & (size - 1) == 0 for size in sizes)


@given(SIZE, SIZE, SIZE, st.integers(1, 121), st.booleans())
def test_products_have_sides_that_tensor_cores_take(
    rows: int, columns: int, summed: int, taps: int, exact: bool
) -> None:
    for tile, low, narrow in (
        (product_tile(rows, columns, summed, taps, exact=exact), 16, 8),
        (linear_tile(rows, columns, summed, taps, 2, 1), 16, 8),
        (linear_tile(rows, columns, summed, taps, 2, 2), 16, 8),
        (linear_tile(rows, columns, summed, taps, 4, 1, exact=exact), 16, 8),
        (backward_weight_tile(rows, columns, taps, summed, 2), 8, 8),
        (backward_weight_tile(rows, columns, taps, summed, 4, exact), 8, 8),
        (materialized_linear_tile(rows, summed), 16, 16),
    ):
        assert powers_of_two(tile.rows, tile.columns, tile.depth, tile.step or 1)
        assert tile.step <= max(tile.columns, tile.depth)
        assert tile.depth >= 16
        assert tile.rows >= low
        assert tile.columns >= narrow
        assert tile.rows * tile.columns <= 4096  # accumulators that registers hold, twice


@given(st.integers(2, 256), SIZE, SIZE, *[st.booleans()] * 5, *[st.sampled_from([2, 4])] * 2)
def test_transforms_have_sides_that_tensor_cores_take(
    k: int, rows: int, blocks: int, adjacent: bool, back: bool, scaled: bool, alone: bool, exact: bool,
    outside: int, inside: int,
) -> None:  # fmt: skip
    tile = transform_tile(k, rows, blocks, adjacent, back, scaled, alone, (outside, inside), exact)
    assert powers_of_two(tile.rows, tile.blocks, tile.depth, tile.columns)
    assert 16 <= tile.rows * tile.blocks <= 128
    assert min(tile.depth, tile.columns) >= 16
    assert 1 <= tile.warps <= 8
    assert not tile.whole or (tile.blocks, tile.columns) == (blocks, k)


def test_sums_are_short_where_float32_is_kept_and_few_numbers_are_added_up() -> None:
    common: Any = {"block_size": 64, "channels_adjacent": True, "back": False, "alone": True}
    assert transform_tile(rows=33, blocks=4, exact=True, **common).depth == 16
    assert transform_tile(rows=4096, blocks=2, exact=True, **common).depth == 16  # narrow
    assert transform_tile(rows=128, blocks=4, exact=True, **common).depth == 64
    assert transform_tile(rows=33, blocks=4, **common).depth == 64
    assert linear_tile(128, 16, 128, 33, 4, 1, exact=True).depth == 32 < linear_tile(128, 16, 128, 33, 4, 1).depth
    assert product_tile(128, 16, 64, 9, exact=True).depth == 32 < product_tile(128, 16, 64, 9).depth
    assert backward_weight_tile(16, 64, 1, 128, 4, exact=True).depth == 32 < backward_weight_tile(16, 64, 1, 128, 4).depth


def test_linear_tiles_are_made_smaller_until_there_are_enough_and_read_ahead_what_fits() -> None:
    large = linear_tile(128, 4096, 256, 32, 2, 1)
    assert (large.rows, large.columns, large.depth) == (64, 64, 128)
    few = linear_tile(128, 16, 256, 32, 2, 1)
    assert (few.rows, few.columns) == (32, 16)
    beside_others = linear_tile(128, 16, 256, 32, 2, 1, enough=64)
    assert (beside_others.rows, beside_others.columns) == (64, 16)
    assert linear_tile(128, 4096, 256, 32, 4, 1).depth == 64  # wide numbers, less deep
    assert linear_tile(128, 4096, 288, 32, 2, 1).depth == 64  # 128 would be a third of zeros


@given(SIZE, SIZE, SIZE, st.sampled_from([(2, 1), (2, 2), (4, 1), (8, 1)]), st.sampled_from([99, 163, 227]))
def test_three_stages_of_a_linear_tile_fit_a_block(
    rows: int, columns: int, summed: int, kind: tuple[int, int], kib: int
) -> None:
    tile = linear_tile(rows, columns, summed, 32, *kind, room=kib * 1024)
    assert tile.stages * tile.depth * kind[0] * kind[1] * (tile.rows + 2 * tile.columns) < kib * 1024


@given(st.integers(2, 256), SIZE, SIZE)
def test_tiles_of_a_step_hold_a_block_and_are_small_where_there_are_few(k: int, rows: int, blocks: int) -> None:
    tile = lstm_step_tile(k, rows, blocks)
    assert powers_of_two(tile.rows, tile.blocks, tile.side, tile.depth)
    assert k <= tile.side and 16 <= tile.depth <= min(tile.side, 64)
    assert tile.rows * tile.blocks == (4 if rows * blocks < 2048 else 8 if rows * blocks < 4096 else 16)


def test_rows_are_split_only_where_programs_are_few() -> None:
    assert split_k_for(8192, 100_000, 32) == 1
    assert split_k_for(64, 12_544, 32) == 25
    assert split_k_for(1, 128, 32) == 1  # too few rows to share


@given(st.sampled_from([16, 32, 64]), st.integers(1, 300), st.integers(1, 49))
def test_tiles_cover_every_number_of_every_tap(side: int, numbers: int, taps: int) -> None:
    assert steps_of(side, numbers, taps) * side >= numbers * taps
    assert num_weight_tiles(side, numbers, taps) * side >= numbers * taps
    assert steps_of(16, 8, 9) == 5  # two taps of 8 in each
    assert steps_of(16, 40, 9) == 27  # each tap in three
    assert steps_of(16, 40, 1) == 3
    assert steps_of(16, 4, 9) == 3  # too few of a tap to be told apart: 36 in a row
    assert num_weight_tiles(16, 4, 9) == 3  # four taps in each
    assert num_weight_tiles(16, 40, 2) == 6


def test_scales_are_for_layers_that_are_large_and_not_empty() -> None:
    assert scaled_fp16_pays(64 * 4096, 4096 * 64, 64 * 4096)
    assert not scaled_fp16_pays(128 * 1024, 1024 * 16, 128 * 1024)
    assert not scaled_fp16_pays(0, 2**20, 0)
