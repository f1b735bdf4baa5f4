import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.accelerate.common.tiling import clamp, next_power_of_2


@given(st.integers(1, 2**40))
def test_the_next_power_of_two(size: int) -> None:
    found = next_power_of_2(size)
    assert found & (found - 1) == 0 and found // 2 < size <= found


@pytest.mark.parametrize(("size", "held"), [(1, 16), (16, 16), (20, 20), (99, 64)])
def test_sizes_are_held_to_limits(size: int, held: int) -> None:
    assert clamp(16, size, 64) == held
