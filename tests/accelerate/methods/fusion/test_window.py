"""Pooling windows have the sizes that torch gives them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from lamina.accelerate.methods.fusion.window import PoolWindow
from lamina.errors import UsageError

SMALL = st.integers(1, 5)


@given(SMALL, SMALL, SMALL, SMALL, st.integers(0, 2), st.integers(0, 2), st.booleans(), SMALL, SMALL)
def test_sizes_are_those_of_torch(
    kh: int, kw: int, sh: int, sw: int, ph: int, pw: int, ceil: bool, height: int, width: int
) -> None:
    assume(2 * ph <= kh and 2 * pw <= kw and height + 2 * ph >= kh and width + 2 * pw >= kw)
    window = PoolWindow(kh, kw, sh, sw, ph, pw, ceil)
    pooled = F.max_pool2d(torch.zeros(1, 1, height, width), (kh, kw), (sh, sw), (ph, pw), ceil_mode=ceil)
    assert window.output(height, width) == tuple(pooled.shape[2:])
    assert PoolWindow.unpack(window.pack()) == window


def test_one_pixel_is_no_pooling() -> None:
    assert PoolWindow().pointwise and not PoolWindow(1, 1, 2, 1).pointwise


def test_an_image_smaller_than_the_window_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 3x2, got 2x5"):
        PoolWindow(3, 2).output(2, 5)
