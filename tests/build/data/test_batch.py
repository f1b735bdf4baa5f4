from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from lamina.build.data import Dataset, as_batch, samples, synthetic
from lamina.build.data.dataset import Samples, dataset
from lamina.errors import UsageError


def images(channels: int, height: int = 8, width: int = 8, items: int = 20) -> Dataset:
    x = np.random.default_rng(0).integers(256, size=(items, channels, height, width)).astype(np.uint8)
    return dataset("images", "train", Samples(x, np.arange(items), tuple(map(str, range(items)))))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 224, 224), (3, 5, 9), (1, 1, 1)])
def test_any_image_takes_any_shape(channels: int, shape: tuple[int, int, int]) -> None:
    x, y = as_batch(images(channels), 7, shape)
    assert (x.shape, x.dtype, x.is_contiguous()) == ((7, *shape), torch.float32, True)
    assert (y.shape, y.dtype) == ((7,), torch.int64)
    assert x.isfinite().all()


def test_a_set_is_normalised_by_channel() -> None:
    x, _ = as_batch(images(3), 20)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3))


def test_grey_is_repeated_and_colour_weighed() -> None:
    grey, _ = as_batch(images(1), 5, (3, 8, 8))
    assert torch.equal(grey[:, 0], grey[:, 1])
    assert torch.equal(grey[:, 0], grey[:, 2])
    colour, _ = as_batch(images(3), 5)
    luma, _ = as_batch(images(3), 5, (1, 8, 8))
    expected = 0.299 * colour[:, 0] + 0.587 * colour[:, 1] + 0.114 * colour[:, 2]
    torch.testing.assert_close(luma[:, 0], expected)


def test_a_wide_image_is_center_cropped() -> None:
    data = images(1, height=4, width=10)
    cropped, _ = as_batch(data, 20, (1, 4, 4))
    whole, _ = as_batch(data, 20)
    torch.testing.assert_close(cropped, whole[:, :, :, 3:7])


def test_shrinking_averages_and_growing_interpolates() -> None:
    """Halving with antialias is the triangle filter 1 3 3 1 over 8, away from the edges."""
    data = images(1, 8, 8)
    whole, _ = as_batch(data, 20)
    small, _ = as_batch(data, 20, (1, 4, 4))
    weights = torch.tensor([1.0, 3, 3, 1]) / 8
    inner = torch.einsum("nhw,h,w->n", whole[:, 0, 1:5, 1:5], weights, weights)
    torch.testing.assert_close(small[:, 0, 1, 1], inner)
    large, _ = as_batch(data, 20, (1, 16, 16))
    torch.testing.assert_close(
        large[:, 0, 1, 1],
        whole[:, 0, 0, 0] * 9 / 16 + (whole[:, 0, 0, 1] + whole[:, 0, 1, 0]) * 3 / 16 + whole[:, 0, 1, 1] / 16,
    )


def test_labels_stay_with_their_images() -> None:
    data = images(1)
    x, y = as_batch(data, 9, seed=4)
    expected = (data.x[y].float() / 255 - data.mean[0]) / data.std[0]
    torch.testing.assert_close(x, expected)


def test_a_large_batch_repeats_the_set_evenly() -> None:
    _, y = as_batch(images(1), 50)
    counts = torch.bincount(y, minlength=20)
    assert (int(counts.min()), int(counts.max()), len(y)) == (2, 3, 50)


def test_the_seed_decides() -> None:
    data = images(1)
    assert torch.equal(as_batch(data, 8, seed=1)[1], as_batch(data, 8, seed=1)[1])
    assert not torch.equal(as_batch(data, 8, seed=1)[1], as_batch(data, 8, seed=2)[1])


def test_frames_are_cut_or_filled_with_the_mean() -> None:
    data = synthetic((10, 4), items=6)
    whole, _ = as_batch(data, 6)
    assert torch.equal(as_batch(data, 6, (7, 4))[0], whole[:, :7])
    longer, _ = as_batch(data, 6, (13, 4))
    assert torch.equal(longer[:, :10], whole)
    assert not longer[:, 10:].any()


def test_tokens_keep_their_labels() -> None:
    data = synthetic((10,), classes=50, items=6)
    x, y = samples(data, torch.arange(6), (4,))
    assert x.dtype == torch.int64
    assert torch.equal(x, data.x[:, :4])
    assert torch.equal(y, data.y[:, :4])


def test_tokens_may_have_one_label_a_sample() -> None:
    data = synthetic((10,), classes=50, items=6)
    one = replace(data, y=data.y[:, 0])
    x, y = samples(one, torch.arange(6), (4,))
    assert torch.equal(x, data.x[:, :4]) and torch.equal(y, data.y[:, 0])


@pytest.mark.parametrize("shape", [(5,), (3, 4, 6, 6)])
def test_values_of_any_shape_are_kept(shape: tuple[int, ...]) -> None:
    data = synthetic(shape, items=6, indices=False)
    x, y = samples(data, torch.arange(6), shape)
    assert data.kind == "values" and torch.equal(x, data.x) and torch.equal(y, data.y)


@pytest.mark.parametrize(
    ("own", "wanted", "message"),
    [
        ((3, 8, 8), (16,), r"expected a dataset of tokens for the input shape \(16,\), got image"),
        ((16,), (3, 8, 8), "expected a dataset of image .* got tokens"),
        ((10, 4), (10, 5), "expected 4 features per frame, as in the data, got 5"),
        ((10,), (11,), "expected at most 10 tokens, its sequences' length, got 11"),
        ((3, 8, 8), (4, 8, 8), "cannot convert 3 channels to 4"),
        ((3, 8, 8), (3, 8, 8, 1), "expected a dataset of values"),
        ((3, 8, 8, 2), (3, 8, 8, 1), "expected a dataset of values .* got values of shape"),
        ((3, 8, 8), (3, 0, 8), "expected a sample shape"),
    ],
)
def test_an_impossible_shape_is_explained(own: Sequence[int], wanted: Sequence[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_batch(synthetic(own, items=4), 2, wanted)


def test_an_empty_batch_is_rejected() -> None:
    with pytest.raises(UsageError, match="batch of at least 1, got 0"):
        as_batch(images(1), 0)
