import pytest
import torch

from lamina.build.convolution import Geometry, fft

CASES = [
    ((2, 16, 14, 14), (16, 16, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    ((2, 48, 12, 12), (32, 48, 3, 3), Geometry((1, 1), (1, 1), (1, 1))),
    ((2, 16, 16, 15), (8, 16, 7, 7), Geometry((2, 2), (3, 3), (1, 1))),
    ((3, 8, 15, 13), (8, 4, 5, 3), Geometry((3, 2), (2, 0), (2, 1), 2)),
    ((3, 8, 33), (8, 4, 3), Geometry((1,), (1,), (1,), 2)),
]

# A transform spreads the rounding of each element over the whole grid: the error follows the norm of the
# image, not that of the few products behind one output. With few channels that is more than the library's
# error, with many it is less.
WORST, MEAN = 4, 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rounding_in_float32(case, within):
    within("fft", case, torch.float32, WORST, MEAN)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_rounds_only_once(dtype, definition, by, sample):
    x, w, gy = sample(*CASES[0], dtype)
    g = CASES[0][2]
    for mine, truth in zip(by("fft", x, w, g, gy), definition(x, w, g, gy), strict=True):
        assert mine.dtype == dtype
        half_a_step = torch.finfo(dtype).eps / 2 * truth.abs() * (1 + 2**-8) + 1e-4
        assert ((mine - truth).abs() <= half_a_step).all()


def test_smooth_sizes_are_the_least_with_small_factors():
    smooth = sorted(2**a * 3**b * 5**c for a in range(11) for b in range(7) for c in range(5))
    for n in range(1, 1000):
        assert fft.smooth_size(n) == next(s for s in smooth if s >= n)


def test_transposed_is_rejected():
    assert "not support transposed convolutions" in fft.refusal(Geometry((1,), (0,), (1,), transposed=True), (1, 1, 3))
