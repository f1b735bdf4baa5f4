"""Tiles are valid for tensor cores at every problem size."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.circulant.tiles import (
    backward_weight_tile,
    conv_tile,
    linear_tile,
    lstm_step_tile,
    materialized_linear_tile,
    num_iterations,
    num_weight_tiles,
    scaled_fp16_pays,
    split_k_for,
    transform_tile,
)

SIZE = st.integers(1, 100_000)


def powers_of_two(*sizes: int) -> bool:
    return all(size & (size - 1) == 0 for size in sizes)


@given(SIZE, SIZE, SIZE, st.integers(1, 121), st.booleans())
def test_matmul_tiles_are_valid_for_tensor_cores(rows: int, columns: int, summed: int, taps: int, exact: bool) -> None:
    for tile, min_block_m, min_block_n in (
        (conv_tile(rows, columns, summed, taps, exact=exact), 16, 8),
        (linear_tile(rows, columns, summed, taps, 2, 1), 16, 8),
        (linear_tile(rows, columns, summed, taps, 2, 2), 16, 8),
        (linear_tile(rows, columns, summed, taps, 4, 1, exact=exact), 16, 8),
        (backward_weight_tile(rows, columns, taps, summed, 2), 8, 8),
        (backward_weight_tile(rows, columns, taps, summed, 4, exact), 8, 8),
        (materialized_linear_tile(rows, summed), 16, 16),
    ):
        assert powers_of_two(tile.block_m, tile.block_n, tile.block_k, tile.tap_width or 1)
        assert tile.tap_width <= max(tile.block_n, tile.block_k)
        assert tile.block_k >= 16
        assert tile.block_m >= min_block_m
        assert tile.block_n >= min_block_n
        assert tile.block_m * tile.block_n <= 4096  # so that two accumulators fit the registers


@given(st.integers(2, 256), SIZE, SIZE, *[st.booleans()] * 5, *[st.sampled_from([2, 4])] * 2)
def test_transform_tiles_are_valid_for_tensor_cores(
    k: int, rows: int, blocks: int, adjacent: bool, inverse: bool, scaled: bool, features: bool, exact: bool,
    outside: int, inside: int,
) -> None:  # fmt: skip
    tile = transform_tile(k, rows, blocks, adjacent, inverse, scaled, features, (outside, inside), exact)
    assert powers_of_two(tile.rows, tile.blocks, tile.block_k, tile.block_n)
    assert 16 <= tile.rows * tile.blocks <= 128
    assert min(tile.block_k, tile.block_n) >= 16
    assert 1 <= tile.num_warps <= 8
    assert tile.rows * tile.blocks * tile.block_n <= 128 * 32 * tile.num_warps  # its sums take half of the registers
    assert not tile.full_rows or (tile.blocks, tile.block_n) == (blocks, k)


def test_block_k_is_small_for_full_float32_accuracy_of_short_sums() -> None:
    common: Any = {"block_size": 64, "channels_adjacent": True, "inverse": False, "features": True}
    assert transform_tile(rows=33, blocks=4, exact=True, **common).block_k == 16
    assert transform_tile(rows=4096, blocks=2, exact=True, **common).block_k == 16  # narrow
    assert transform_tile(rows=128, blocks=4, exact=True, **common).block_k == 64
    assert transform_tile(rows=33, blocks=4, **common).block_k == 64
    assert linear_tile(128, 16, 128, 33, 4, 1, exact=True).block_k == 32 < linear_tile(128, 16, 128, 33, 4, 1).block_k
    assert conv_tile(128, 16, 64, 9, exact=True).block_k == 32 < conv_tile(128, 16, 64, 9).block_k
    assert (
        backward_weight_tile(16, 64, 1, 128, 4, exact=True).block_k
        == 32
        < backward_weight_tile(16, 64, 1, 128, 4).block_k
    )


def test_linear_tiles_shrink_until_there_are_enough_programs_and_stages_fit() -> None:
    large = linear_tile(128, 4096, 256, 32, 2, 1)
    assert (large.block_m, large.block_n, large.block_k) == (64, 64, 128)
    few = linear_tile(128, 16, 256, 32, 2, 1)
    assert (few.block_m, few.block_n) == (32, 16)
    with_backward = linear_tile(128, 16, 256, 32, 2, 1, min_programs=64)
    assert (with_backward.block_m, with_backward.block_n) == (64, 16)
    assert linear_tile(128, 4096, 256, 32, 4, 1).block_k == 64  # wide summed, less deep
    assert linear_tile(128, 4096, 288, 32, 2, 1).block_k == 64  # 128 would pad K by a third


@given(SIZE, SIZE, SIZE, st.sampled_from([(2, 1), (2, 2), (4, 1), (8, 1)]), st.sampled_from([99, 163, 227]))
def test_three_stages_of_a_linear_tile_fit_shared_memory(
    rows: int, columns: int, summed: int, format: tuple[int, int], kib: int
) -> None:
    tile = linear_tile(rows, columns, summed, 32, *format, shared_memory=kib * 1024)
    assert tile.num_stages * tile.block_k * format[0] * format[1] * (tile.block_m + 2 * tile.block_n) < kib * 1024


@given(st.integers(2, 256), SIZE, SIZE)
def test_lstm_step_tiles_hold_a_block_and_shrink_for_few_rows(k: int, rows: int, blocks: int) -> None:
    tile = lstm_step_tile(k, rows, blocks)
    assert powers_of_two(tile.rows, tile.blocks, tile.padded_k, tile.block_k)
    assert k <= tile.padded_k and 16 <= tile.block_k <= min(tile.padded_k, 64)
    assert tile.rows * tile.blocks == (4 if rows * blocks < 2048 else 8 if rows * blocks < 4096 else 16)


def test_split_k_is_one_with_enough_programs() -> None:
    assert split_k_for(8192, 100_000, 32) == 1
    assert split_k_for(64, 12_544, 32) == 25
    assert split_k_for(1, 128, 32) == 1  # too few rows to split


@given(st.sampled_from([16, 32, 64]), st.integers(1, 300), st.integers(1, 49))
def test_tiles_cover_every_element_of_every_tap(side: int, summed: int, taps: int) -> None:
    assert num_iterations(side, summed, taps) * side >= summed * taps
    assert num_weight_tiles(side, summed, taps) * side >= summed * taps
    assert num_iterations(16, 8, 9) == 5  # two taps of 8 per tile
    assert num_iterations(16, 40, 9) == 27  # three tiles per tap
    assert num_iterations(16, 40, 1) == 3
    assert num_iterations(16, 4, 9) == 3  # taps too narrow to group: 36 flat elements
    assert num_weight_tiles(16, 4, 9) == 3  # four taps per tile
    assert num_weight_tiles(16, 40, 2) == 6


def test_scaled_fp16_is_for_large_and_nonempty_layers() -> None:
    assert scaled_fp16_pays(64 * 4096, 4096 * 64, 64 * 4096)
    assert not scaled_fp16_pays(128 * 1024, 1024 * 16, 128 * 1024)
    assert not scaled_fp16_pays(0, 2**20, 0)
