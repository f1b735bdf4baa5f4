"""The searches against the published example and against each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.search import Mapping, accurate, hasty, profile, prudent


def published() -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Seven lines, of which 1, 4 and 6 have values; 16 of them up to place 7 of line 4, 16 to the end of line 6."""
    column = np.zeros(7 * 16, dtype=np.bool_)
    column[16:24] = column[4 * 16 : 4 * 16 + 12] = column[6 * 16 + 4 :] = True
    return column


def test_the_published_example() -> None:
    seen = profile(published())
    assert [line for line, bit in enumerate(seen.bits) if bit] == [1, 4, 6]
    assert seen.mappings == (Mapping(2, 7), Mapping(1, 15))
    assert accurate(seen.bits, seen.mappings, 0).lines == (1, 4)
    assert accurate(seen.bits, seen.mappings, 1).lines == (6,)
    assert prudent(seen.bits, 2).lines == (1, 4)
    assert hasty(7, 5).lines == (0, 1, 2, 3, 4)


def test_each_step_counts() -> None:
    seen = profile(published())
    assert [accurate(seen.bits, seen.mappings, index).steps for index in (0, 1)] == [2, 2]
    assert prudent(seen.bits, 8).steps == 3
    assert hasty(7, 8, start=5).steps == 2


def test_a_mapping_that_is_gone_is_rejected() -> None:
    with pytest.raises(UsageError, match="expected 0 to 1; search without it"):
        accurate(profile(published()).bits, profile(published()).mappings, 2)


@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_what_is_known_saves_lines(values: list[bool]) -> None:
    seen = profile(np.array(values + [False] * (-len(values) % 16)))
    lines = len(seen.bits)
    known = [line for index in range(len(seen.mappings)) for line in accurate(seen.bits, seen.mappings, index).lines]
    assert known == sorted(set(known))
    assert tuple(known) == prudent(seen.bits, lines).lines
    assert set(known) <= set(hasty(lines, lines).lines)
    assert [each.offset for each in seen.mappings] == [row % 16 for row in np.flatnonzero(values)[15::16]] + (
        [int(np.flatnonzero(values)[-1]) % 16] if sum(values) % 16 else []
    )
