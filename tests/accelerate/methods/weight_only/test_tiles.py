from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.methods.weight_only.tiles import SHARED, tile

SIZES = st.integers(1, 30_000)


@given(SIZES, SIZES, SIZES, st.sampled_from([(1, 2), (1, 4), (2, 4), (4, 8)]))
def test_every_tile_fits_and_is_pipelined(outputs: int, rows: int, inputs: int, sizes: tuple[int, int]) -> None:
    at = tile(outputs, rows, inputs, *sizes)
    stage = at.depth * (at.outputs * sizes[0] + at.rows * sizes[1])
    assert 2 <= at.stages <= 4 and at.stages * stage <= SHARED
    assert at.splits >= 1 and at.outputs >= 16 and at.rows >= 16 and at.depth >= 16


def test_stages_are_given_up_only_where_memory_is_short() -> None:
    assert tile(4096, 128, 9216, 1, 2).stages == 4
    assert tile(4096, 128, 9216, 1, 4).stages == 2
    assert tile(4096, 16, 9216, 1, 4).stages == 4
