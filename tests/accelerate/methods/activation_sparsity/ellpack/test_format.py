"""ELLPACK-DIB there and back, word by word, and what it does with numbers that do not fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from lamina.accelerate.methods.activation_sparsity import reference
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.errors import UsageError

NAN, INF = math.nan, math.inf
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, NAN, INF, -INF]), st.floats(width=32))
MATRICES = npst.arrays(np.float32, st.tuples(st.integers(0, 9), st.integers(0, 7)), elements=FLOATS)


def by_hand(dense: Tensor, panel: int, scales: Tensor) -> dict[tuple[int, int], list[tuple[int, np.float16]]]:
    """Each column's rows and values in each panel, one after another."""
    found: dict[tuple[int, int], list[tuple[int, np.float16]]] = {}
    matrix = dense.double().numpy()
    for row, column in np.ndindex(*matrix.shape):
        if matrix[row, column] != 0:
            scaled = matrix[row, column] / float(scales[row // panel])
            with np.errstate(over="ignore"):
                found.setdefault((row // panel, column), []).append((row % panel, np.float16(scaled)))
    return found


@given(MATRICES, st.integers(1, 10))
def test_every_word_is_as_by_hand(array: np.ndarray, panel: int) -> None:
    dense = torch.from_numpy(array)
    sparse = reference.from_dense(dense, panel=panel)
    expected = by_hand(dense, panel, sparse.scales)
    words, counts = sparse.words.numpy().view(np.uint32), sparse.counts.numpy()
    for p, column in np.ndindex(*counts.shape):
        column_words = words[p, : counts[p, column], column]
        pairs = [(int(w >> 16), np.uint16(w & 0xFFFF).view(np.float16)) for w in column_words]
        theirs = expected.get((p, column), [])
        assert [row for row, _ in pairs] == [row for row, _ in theirs]
        np.testing.assert_array_equal([value for _, value in pairs], [value for _, value in theirs])
    assert sparse.capacity == counts.max(initial=0)


@given(MATRICES, st.integers(1, 10))
def test_there_and_back_is_within_float16(array: np.ndarray, panel: int) -> None:
    dense = torch.from_numpy(array)
    sparse = reference.from_dense(dense, panel=panel)
    back = reference.to_dense(sparse)
    assert back.shape == dense.shape and sparse.nonzeros == int((dense != 0).sum())
    assert torch.equal(back.isnan(), dense.isnan())
    assert torch.equal(back.isinf(), dense.isinf())
    largest = torch.where(dense.isfinite(), dense.abs(), 0.0).double().amax() if dense.numel() else 0.0
    report = reference.rounding(dense, sparse)
    assert report.overflowed == 0
    assert report.relative <= 2**-11 and report.absolute <= 2**-11 * float(largest) + 1e-45
    assert report.flushed == int(((dense != 0) & (back == 0)).sum())


@given(
    npst.arrays(
        np.float16, st.tuples(st.integers(0, 9), st.integers(0, 7)), elements=st.floats(width=16, allow_nan=False)
    )
)
def test_float16_comes_back_exactly_with_scale_one(array: np.ndarray) -> None:
    dense = torch.from_numpy(array)
    sparse = reference.from_dense(dense, scales=torch.ones(1))
    assert torch.equal(reference.to_dense(sparse, torch.float16), dense)
    again = reference.from_dense(reference.to_dense(sparse, torch.float16), scales=torch.ones(1))
    assert torch.equal(sparse.words, again.words) and torch.equal(sparse.counts, again.counts)


@pytest.mark.parametrize("largest", [1e-38, 1e-8, 1.0, 65504.0, 65520.0, 1e9, 3.4e38])
def test_no_finite_value_overflows_a_fitted_scale(largest: float) -> None:
    dense = torch.tensor([[largest, 0.0], [-largest / 2, largest / 4]])
    report = reference.rounding(dense, reference.from_dense(dense))
    assert report.overflowed == 0 and report.flushed == 0
    assert report.relative <= 2**-11


def test_a_given_scale_that_is_too_small_is_reported() -> None:
    dense = torch.tensor([[1e6, 1e-9, 3.0, INF]])
    sparse = reference.from_dense(dense, scales=torch.ones(1))
    report = reference.rounding(dense, sparse)
    assert (report.overflowed, report.flushed) == (1, 1)
    assert reference.to_dense(sparse)[0].tolist() == [INF, 0.0, 3.0, INF]
    assert sparse.nonzeros == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("fill", [0.0, 1.5])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (5, 4)])
def test_nothing_and_everything(shape: tuple[int, int], fill: float, dtype: torch.dtype) -> None:
    dense = torch.full(shape, fill, dtype=dtype)
    sparse = reference.from_dense(dense)
    assert sparse.shape == shape and sparse.nonzeros == (dense.numel() if fill else 0)
    assert torch.equal(reference.to_dense(sparse, dtype), dense)


def test_empty_columns_and_any_strides() -> None:
    dense = torch.randn(6, 10)
    dense[:, [0, 3, 9]] = 0
    expected = reference.from_dense(dense)
    for view in (dense.mT.contiguous().mT, torch.stack([dense, dense], -1)[..., 0]):
        sparse = reference.from_dense(view)
        assert torch.equal(sparse.words, expected.words) and torch.equal(sparse.counts, expected.counts)
    assert expected.counts[0, [0, 3, 9]].tolist() == [0, 0, 0]


def test_more_rows_than_16_bits_tell_apart() -> None:
    dense = torch.zeros(70_000, 2)
    dense[[0, 32_768, 65_535, 65_536, 69_999], 1] = torch.tensor([1.0, 2.0, 3.0, 4e5, 5e5])
    sparse = reference.from_dense(dense)
    assert sparse.counts.tolist() == [[0, 3], [0, 2]]
    assert sparse.scales[0] != sparse.scales[1]
    torch.testing.assert_close(reference.to_dense(sparse), dense, rtol=2**-11, atol=0)


def test_a_column_that_does_not_fit_is_told() -> None:
    sparse = reference.from_dense(torch.ones(5, 3), capacity=2)
    assert sparse.counts.tolist() == [[5, 5, 5]] and sparse.capacity == 2
    for refused in (
        sparse.check,
        lambda: reference.to_dense(sparse),
        lambda: reference.matmul(torch.ones(1, 5), sparse),
    ):
        with pytest.raises(UsageError, match="at most 2 non-zeros in a column of a panel, got 5"):
            refused()


@given(MATRICES, st.integers(1, 10), st.integers(0, 4))
def test_products_are_those_of_the_matrix(array: np.ndarray, panel: int, rows: int) -> None:
    dense = torch.nan_to_num(torch.from_numpy(array), 1.0, 2.0, -2.0).clamp(-1e3, 1e3)
    sparse = reference.from_dense(dense, panel=panel)
    a = torch.linspace(-1, 1, rows * dense.shape[0], dtype=torch.float64).view(rows, dense.shape[0])
    held = reference.to_dense(sparse, torch.float64)
    torch.testing.assert_close(reference.matmul(a, sparse), a @ held, rtol=1e-12, atol=1e-9)


def test_gradients_and_transforms_pass_rounding() -> None:
    x, along = torch.randn(3, 4), torch.randn(3, 4)
    held = reference.round_to_format(x)
    torch.testing.assert_close(torch.func.grad(lambda x: reference.round_to_format(x).square().sum())(x), 2 * held)
    torch.testing.assert_close(torch.func.jvp(reference.round_to_format, (x,), (along,))[1], along)
    torch.testing.assert_close(
        torch.func.vmap(reference.round_to_format)(x), torch.stack([*map(reference.round_to_format, x)])
    )


def test_bytes_held_are_counted() -> None:
    sparse = reference.from_dense(torch.eye(4, 6), panel=2)
    assert sparse.nbytes == 4 * (2 * 1 * 6) + 4 * (2 * 6) + 4 * 2


def test_wrong_parts_are_refused() -> None:
    words, counts, scales = torch.zeros(1, 2, 3, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int32), torch.ones(1)
    for wrong, said in (
        (lambda: EllpackDib(words[0], counts, scales, 4), "words"),
        (lambda: EllpackDib(words, counts[:, :2], scales, 4), "counts"),
        (lambda: EllpackDib(words.long(), counts, scales, 4), "int32 words"),
        (lambda: EllpackDib(words, counts, scales, 4, panel=65_537), "1 to 65536 rows, got 65537"),
        (lambda: reference.from_dense(torch.zeros(3)), r"matrix, got torch.float32 of \(3,\)"),
        (lambda: reference.from_dense(torch.zeros(3, 3, dtype=torch.int64)), "torch.int64"),
        (lambda: reference.from_dense(torch.zeros(3, 3), capacity=-1), "capacity: expected a non-negative integer"),
        (
            lambda: reference.matmul(torch.zeros(2, 3), reference.from_dense(torch.zeros(4, 2))),
            r"\(M, 4\), got \(2, 3\)",
        ),
        (lambda: reference.rounding(torch.zeros(2, 3), reference.from_dense(torch.zeros(4, 2))), r"\(4, 2\)"),
    ):
        with pytest.raises(UsageError, match=said):
            wrong()
