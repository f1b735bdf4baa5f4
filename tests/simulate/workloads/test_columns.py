import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import UsageError
from lamina.simulate.workloads import im2col, line_density
from lamina.simulate.workloads.columns import inside
from lamina.spec.geometry import Conv2dGeometry

sizes = st.integers(1, 3)
windows = st.builds(
    Conv2dGeometry.of,
    kernel=st.tuples(sizes, sizes),
    stride=st.tuples(sizes, sizes),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
masks = st.builds(
    lambda n, c, h, w, seed: np.random.default_rng(seed).random((n, c, h, w)) < 0.5,
    sizes, sizes, st.integers(5, 8), st.integers(5, 8), st.integers(0, 99),
)  # fmt: skip


def unfolded(mask: np.ndarray, window: Conv2dGeometry) -> np.ndarray:
    columns = torch.nn.functional.unfold(
        torch.from_numpy(mask).float(), window.kernel, window.dilation, window.padding, window.stride
    )
    return columns.permute(1, 0, 2).reshape(columns.shape[1], -1).numpy() != 0


@settings(max_examples=60)
@given(masks, windows)
def test_columns_are_those_of_unfold(mask: np.ndarray, window: Conv2dGeometry) -> None:
    columns = im2col(mask, window)
    assert columns.dtype == np.bool_
    np.testing.assert_array_equal(columns, unfolded(mask, window))


@settings(max_examples=60)
@given(masks, windows, st.data())
def test_some_columns_are_those_of_all(mask: np.ndarray, window: Conv2dGeometry, data: st.DataObject) -> None:
    whole = im2col(mask, window)
    first = data.draw(st.integers(0, whole.shape[1]))
    last = data.draw(st.integers(first, whole.shape[1]))
    np.testing.assert_array_equal(im2col(mask, window, range(first, last)), whole[:, first:last])


@given(masks, windows)
def test_tap_order_holds_the_same_rows(mask: np.ndarray, window: Conv2dGeometry) -> None:
    channels = mask.shape[1]
    whole = im2col(mask, window).reshape(channels, window.taps, -1)
    np.testing.assert_array_equal(
        im2col(mask, window, order="tap").reshape(window.taps, channels, -1), whole.transpose(1, 0, 2)
    )


@given(masks, windows)
def test_the_share_inside_is_what_a_full_map_leaves_of_its_columns(mask: np.ndarray, window: Conv2dGeometry) -> None:
    full = im2col(np.ones_like(mask), window)
    assert inside(window, *mask.shape[2:]) == pytest.approx(full.mean())


def test_zeros_of_padding_join_those_of_the_map() -> None:
    window = Conv2dGeometry.of((3, 3), padding=(1, 1))
    mask = np.zeros((1, 1, 4, 4), dtype=np.bool_)
    mask[0, 0, 1:3, 1:3] = True
    assert im2col(mask, window).sum() == 4 * 9  # four inner values, each in nine windows
    assert inside(window, 4, 4) == pytest.approx(100 / 144)  # 2 corners of 4, ... : (3 * 4 - 2) ** 2 / (3 * 4) ** 2


def test_lines_begin_with_each_column() -> None:
    columns = np.zeros((33, 2), dtype=np.bool_)
    columns[0, 0] = columns[15, 0] = columns[32, 1] = True
    assert line_density(columns) == pytest.approx(2 / 6)
    with pytest.raises(UsageError, match="0 x 2"):
        line_density(np.zeros((0, 2), dtype=np.bool_))


def test_what_does_not_fit_is_rejected() -> None:
    mask = np.ones((2, 1, 2, 2), dtype=np.bool_)
    with pytest.raises(UsageError, match="four axes"):
        im2col(mask[0], Conv2dGeometry())
    with pytest.raises(UsageError, match=r"kernel \(3, 3\)"):
        im2col(mask, Conv2dGeometry.of((3, 3)))
    with pytest.raises(UsageError, match="columns from 0 to 7"):
        im2col(mask, Conv2dGeometry(), range(9))
    with pytest.raises(UsageError, match="columns from 0 to 7"):
        im2col(mask, Conv2dGeometry(), range(-1, 2))
