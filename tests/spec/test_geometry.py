"""Geometry has the sizes that PyTorch gives convolutions and poolings."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.spec.geometry import Conv2dGeometry, Pair, Pool2dGeometry

SMALL = st.integers(1, 5)
SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(SIZES, SIZES, st.tuples(st.integers(0, 2), st.integers(0, 2)), SIZES, SMALL, SMALL)
def test_convolutions_have_the_sizes_of_pytorch(
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, h: int, w: int
) -> None:
    conv = Conv2dGeometry.of(kernel, stride, padding, dilation)
    assert (conv.kernel, conv.stride, conv.padding, conv.dilation) == (kernel, stride, padding, dilation)
    assert Conv2dGeometry.unpack(conv.pack()) == conv and [*conv.constexprs().values()] == conv.pack()
    assert conv.taps == kernel[0] * kernel[1] and conv.strided == (stride != (1, 1))
    if min(conv.positions(h, w)) < 1:
        with pytest.raises(UsageError, match=f"{kernel[0]}x{kernel[1]} kernel.*got {h}x{w} with padding"):
            conv.output_size(h, w)
        return
    y = F.conv2d(torch.zeros(1, 1, h, w), torch.zeros(1, 1, *kernel), None, stride, padding, dilation)
    assert conv.output_size(h, w) == conv.positions(h, w) == tuple(y.shape[2:])
    if not conv.strided:
        assert conv.transposed().positions(*y.shape[2:]) == (h, w)


def test_only_a_1x1_convolution_of_each_pixel_is_pointwise() -> None:
    assert Conv2dGeometry().pointwise and Conv2dGeometry(dilation_width=2).pointwise
    for field in ("stride_width", "padding_height", "kernel_width"):
        assert not Conv2dGeometry(**{field: 2}).pointwise


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 2), st.integers(0, 2), st.booleans(), SMALL, SMALL)
def test_poolings_have_the_sizes_of_pytorch(
    kh: int, kw: int, sh: int, sw: int, ph: int, pw: int, ceil: bool, height: int, width: int
) -> None:
    assume(2 * ph <= kh and 2 * pw <= kw and height + 2 * ph >= kh and width + 2 * pw >= kw)
    pool = Pool2dGeometry(kh, kw, sh, sw, ph, pw, ceil)
    pooled = F.max_pool2d(torch.zeros(1, 1, height, width), (kh, kw), (sh, sw), (ph, pw), ceil_mode=ceil)
    assert pool.output_size(height, width) == tuple(pooled.shape[2:])
    assert Pool2dGeometry.unpack(pool.pack()) == pool and [*pool.constexprs().values()] == pool.pack()[:6]


def test_a_pooling_of_one_pixel_is_the_identity() -> None:
    assert Pool2dGeometry().pointwise and not Pool2dGeometry(1, 1, 2, 1).pointwise


def test_an_image_smaller_than_the_window_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 3x2, got 2x5"):
        Pool2dGeometry(3, 2).output_size(2, 5)


@pytest.mark.parametrize(
    ("sizes", "message"), [((3, 3, 0, 1), "at least 1, got .*0"), ((3, 3, 1, 1, 2, 0), "half the height 3, got 2")]
)
def test_a_pooling_that_pytorch_refuses_is_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pool2dGeometry(*sizes)
