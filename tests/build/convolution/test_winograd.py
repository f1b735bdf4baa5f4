from fractions import Fraction

import pytest
import torch

from lamina.build.convolution import Geometry, phase, winograd
from lamina.errors import UsageError

SAME = Geometry((1, 1), (1, 1), (1, 1))
CASES = [
    ((2, 16, 14, 14), (16, 16, 3, 3), SAME),
    ((2, 48, 12, 12), (32, 48, 3, 3), SAME),
    ((2, 8, 9, 7), (6, 8, 3, 3), Geometry((1, 1), (0, 1), (1, 1))),
    ((3, 8, 33), (8, 4, 3), Geometry((1,), (1,), (1,), 2)),
]

# The data transform adds and subtracts neighbours before the products, and the output transform cancels them
# again. Along each axis its rows sum in magnitude to 2 for F(2,3) and to 10 for F(4,3), whose output
# transform weighs points by up to 8: what the products are rounded by grows with that.
F23 = {"worst": 6, "mean": 2}
F43 = {"worst": 40, "mean": 10}
# In half precisions the points of the transform themselves are rounded.
F43_HALF = {"worst": 80, "mean": 20}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_of_f23_in_float32(case, within):
    within("winograd2", case, torch.float32, **F23)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_of_f43_in_float32(case, within):
    within("winograd4", case, torch.float32, **F43)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_rounding_in_half_precisions(case, dtype, within):
    within("winograd2", case, dtype, **F23)
    within("winograd4", case, dtype, **F43_HALF)


@pytest.mark.parametrize("tile", [2, 4])
def test_the_matrices_are_exact(tile):
    """``A^T [(G g) * (B^T d)]`` on each pair of unit vectors is exactly one tap of a sliding product."""
    exact = [[[Fraction(v).limit_denominator(24) for v in row] for row in m] for m in winograd._COEFFICIENTS[tile]]
    output, data, taps = exact
    points = range(tile + 2)
    for k in range(3):
        for i in points:
            products = [taps[p][k] * data[p][i] for p in points]
            y = [sum(row[p] * products[p] for p in points) for row in output]
            assert y == [1 if i == t + k else 0 for t in range(tile)]


@pytest.mark.parametrize(("width", "tile"), [(7, 2), (8, 4)])
def test_the_tile_follows_the_output_width(width, tile, sample, by):
    x, w, gy = sample((2, 3, 12, width), (4, 3, 3, 3), SAME, torch.float32)
    chosen, named = by("winograd", x, w, SAME, gy), by(f"winograd{tile}", x, w, SAME, gy)
    other = by(f"winograd{6 - tile}", x, w, SAME, gy)
    assert all(torch.equal(a, b) for a, b in zip(chosen, named, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(chosen, other, strict=True))


def test_another_tile_is_rejected():
    with pytest.raises(UsageError, match="expected tile 2 or 4, got 3"):
        winograd.forward(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), SAME, tile=3)


@pytest.mark.parametrize(
    ("geometry", "kernel", "reason"),
    [
        (SAME, (5, 5), "kernel of 3 along each axis, got 5x5"),
        (SAME, (3, 1), "kernel of 3 along each axis, got 3x1"),
        (Geometry((2, 2), (1, 1), (1, 1)), (3, 3), "stride 1 and dilation 1, got stride 2x2"),
        (Geometry((1, 1), (1, 1), (1, 2)), (3, 3), "dilation 1x2"),
        (Geometry((1, 1), (1, 3), (1, 1)), (3, 3), "padding of 0, 1 or 2, got 1x3"),
        (Geometry((1, 1), (1, 1), (1, 1), transposed=True), (3, 3), "not support transposed convolutions"),
    ],
)
def test_unsupported_geometries(geometry, kernel, reason):
    assert reason in winograd.refusal(geometry, (4, 4, *kernel))


def test_pure_functions_can_be_differentiated_after_inference_mode(sample):
    """The matrices are kept between calls; they must not be inference tensors."""
    winograd._transform.cache_clear()
    x, w, _ = sample(*CASES[0], torch.float32)
    forward = phase("winograd4", "forward")
    with torch.inference_mode():
        forward(x, w, SAME)
    x = x.requires_grad_()
    forward(x, w, SAME).sum().backward()
    assert x.grad.abs().sum() > 0
