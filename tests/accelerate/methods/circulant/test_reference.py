"""Both forms of the definition against matrices built element by element."""

import pytest
import torch
import torch.nn.functional as F

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import reference

SIZES = [(2, 4, 6), (2, 5, 3), (3, 7, 5), (4, 8, 12), (7, 9, 15), (16, 40, 33), (64, 70, 130)]


def written_out(w: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    k = w.shape[-1]
    elements = [[w[r // k, c // k, (r % k - c % k) % k] for c in range(inputs)] for r in range(outputs)]
    return torch.stack([torch.stack(row) for row in elements])


@pytest.mark.parametrize(("k", "outputs", "inputs"), SIZES[:5])
def test_dense_matrix_element_by_element(k: int, outputs: int, inputs: int) -> None:
    w = torch.randn(-(-outputs // k), -(-inputs // k), k)
    assert torch.equal(reference.dense_matrix(w, outputs, inputs), written_out(w, outputs, inputs))


def test_dense_matrix_of_grouped_taps() -> None:
    w = torch.randn(4, 3, 2, 2, 5)  # two groups of two by two blocks of 5, for each of 3 by 2 taps
    dense = reference.dense_matrix(w, 14, 16, groups=2)
    assert dense.shape == (14, 8, 3, 2)
    for group in range(2):
        expected = written_out(w[2 * group : 2 * group + 2, 2, 1], 7, 8)
        assert torch.equal(dense[7 * group : 7 * group + 7, :, 2, 1], expected)


@pytest.mark.parametrize(("k", "outputs", "inputs"), SIZES)
def test_frequencies_compute_the_dense_product(k: int, outputs: int, inputs: int) -> None:
    w = torch.randn(-(-outputs // k), -(-inputs // k), k, dtype=torch.float64)
    x, b = torch.randn(2, 3, inputs, dtype=torch.float64), torch.randn(outputs, dtype=torch.float64)
    expected = F.linear(x, reference.dense_matrix(w, outputs, inputs), b)
    torch.testing.assert_close(reference.linear(x, w, b, outputs), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("k", [2, 5, 8])
def test_convolution_computes_the_dense_convolution(k: int) -> None:
    outputs, inputs, groups = 2 * (k + 1), 2 * (k + 3), 2
    w = torch.randn(4, 3, 2, -(-(inputs // 2) // k), k, dtype=torch.float64)
    x, b = torch.randn(2, inputs, 9, 8, dtype=torch.float64), torch.randn(outputs, dtype=torch.float64)
    window = Conv2dProblem(2, 9, 8, 3, 2, 2, 1, 1, 0, 2, 3, groups)
    expected = F.conv2d(x, reference.dense_matrix(w, outputs, inputs, groups), b, (2, 1), (1, 0), (2, 3), groups)
    y = reference.conv(x, w, b, outputs, window)
    assert y.shape[2:] == (window.out_height, window.out_width)
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type(dtype: torch.dtype) -> None:
    x, w = torch.ones(1, 4, dtype=dtype), torch.ones(1, 1, 4, dtype=dtype)
    y = reference.linear(x, w, None, 4)
    assert y.dtype == dtype
    torch.testing.assert_close(y, torch.full((1, 4), 4, dtype=dtype))
