from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.weight_only.tiles import SHARED, tile

SIZES = st.integers(1, 30_000)


@given(SIZES, SIZES, SIZES, st.sampled_from([(1, 2), (1, 4), (2, 4), (4, 8)]))
def test_every_tile_fits_and_is_pipelined(outputs: int, rows: int, inputs: int, sizes: tuple[int, int]) -> None:
    at = tile(outputs, rows, inputs, *sizes)
    stage = at.block_k * (at.block_m * sizes[0] + at.block_n * sizes[1])
    assert 2 <= at.num_stages <= 4 and at.num_stages * stage <= SHARED
    assert at.split_k >= 1 and at.block_m >= 16 and at.block_n >= 16 and at.block_k >= 16


def test_stages_are_given_up_only_where_memory_is_short() -> None:
    assert tile(4096, 128, 9216, 1, 2).num_stages == 4
    assert tile(4096, 128, 9216, 1, 4).num_stages == 2
    assert tile(4096, 16, 9216, 1, 4).num_stages == 4
