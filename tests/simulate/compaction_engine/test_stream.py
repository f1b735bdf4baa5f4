"""The delivered stream is the matrix, and timing sees where its lines come from."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.compaction_engine.config import Engine
from lamina.simulate.compaction_engine.search import profile
from lamina.simulate.compaction_engine.stream import NONE, decode, encode, layout

ENGINES = [
    Engine(),
    Engine(narrow=False),
    Engine(compaction=False),
    Engine(compaction=False, narrow=False),
    Engine(block=2),
    Engine(block=4, narrow=False),
    Engine(block=16),
]


@st.composite
def masks(draw: st.DrawFn) -> NDArray[np.bool_]:
    """Any zeros: whole columns of them or none, whole lines of them."""
    rows, columns = draw(st.integers(1, 130)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    density = np.array(draw(st.lists(st.sampled_from((0.0, 0.03, 0.5, 1.0)), min_size=columns, max_size=columns)))
    mask = random.random((rows, columns)) < density
    lines = random.random((-(-rows // 16), columns)) < draw(st.sampled_from((0.5, 1.0)))
    return np.asarray(mask & np.repeat(lines, 16, axis=0)[:rows])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@settings(max_examples=40)
@given(mask=masks(), seed=st.integers(0, 2**32))
def test_the_stream_decodes_to_the_matrix(engine: Engine, mask: NDArray[np.bool_], seed: int) -> None:
    values = np.random.default_rng(seed).uniform(0.5, 2, mask.shape).astype(np.float32) * mask
    expected = values.astype(np.float16).astype(np.float32) if engine.narrow else values
    stream = encode(values, engine)
    assert np.array_equal(decode(stream), expected)
    assert stream.last.sum() == mask.shape[1]
    assert stream.values.shape[1] == engine.entries_per_line


@settings(max_examples=40)
@given(matrix=arrays.arrays(np.float32, (20, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_what_fp16_makes_of_any_number_is_what_is_delivered(matrix: NDArray[np.float32]) -> None:
    stream = encode(matrix, Engine())
    with np.errstate(over="ignore"):
        assert np.array_equal(decode(stream), matrix.astype(np.float16).astype(np.float32))
    assert (stream.values[stream.rows != NONE] != 0).all()


def test_entries_are_packed_as_the_format_says() -> None:
    matrix = np.zeros((40, 2), dtype=np.float32)
    matrix[[3, 33], 1] = 1.0, -2.0
    stream = encode(matrix, Engine())
    assert stream.last.tolist() == [True, True]
    assert (stream.packed[0] == np.uint32(NONE << 16)).all()
    assert stream.packed[1, :3].tolist() == [3 << 16 | 0x3C00, 33 << 16 | 0xC000, NONE << 16]
    with pytest.raises(UsageError, match="got fp32"):
        _ = encode(matrix, Engine(narrow=False)).packed


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((0, 3), np.float32),
        np.zeros(3, np.float32),
        np.zeros((3, 3)),
        np.full((2, 2), np.nan, np.float32),
        np.zeros((2**16, 1), np.float32),
    ],
    ids=["empty", "vector", "double", "nan", "long"],
)
def test_what_is_no_matrix_is_rejected(matrix: NDArray[np.float32]) -> None:
    with pytest.raises(UsageError, match="expected"):
        encode(matrix, Engine())


@pytest.mark.parametrize("mask", [np.zeros((4, 0), np.bool_), np.zeros(4, np.bool_), np.zeros((4, 4))], ids=str)
def test_invalid_masks_are_rejected(mask: NDArray[np.bool_]) -> None:
    with pytest.raises(UsageError, match="expected a boolean mask"):
        layout(mask, Engine())


@settings(max_examples=60)
@given(mask=masks(), engine=st.sampled_from(ENGINES))
def test_the_layout_is_that_of_the_stream(mask: NDArray[np.bool_], engine: Engine) -> None:
    values = mask.astype(np.float32)
    stream, made = encode(values, engine), layout(mask, engine)
    ends = np.flatnonzero(stream.last)
    assert np.array_equal(np.diff(ends, prepend=-1), made.delivered)
    for line, rows in enumerate(stream.rows):
        held = rows[rows != NONE]
        assert made.last[line] == (held.max() // 16 if held.size else -1)
        end = stream.last[line]
        if engine.compaction:
            following = stream.rows[line + 1, 0] // 16 if not end else made.lines - 1
            assert made.scan[line] == following
        else:
            assert made.scan[line] == made.last[line]


@settings(max_examples=60)
@given(mask=masks())
def test_the_layout_agrees_with_the_profile_of_each_column(mask: NDArray[np.bool_]) -> None:
    made = layout(mask, Engine())
    for column, below in enumerate(made.below):
        seen = profile(np.pad(mask[:, column], (0, -len(mask) % 16)))
        assert tuple(np.diff(below) > 0) == seen.bits
        first = made.starts[column]
        ends = [-1, *made.last[first : first + made.delivered[column]]]
        needed = [int((np.diff(below) > 0)[before + 1 : end + 1].sum()) for before, end in pairwise(ends)]
        assert [each.needed for each in seen.mappings] == (needed if below[-1] else [])
