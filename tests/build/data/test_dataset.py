import numpy as np
import pytest
import torch

from lamina.build.data.dataset import Dataset, Samples, dataset, kind_of, to_float
from lamina.errors import UsageError


def made(x: np.ndarray, y: object = None, classes: int = 3) -> Dataset:
    labels = np.zeros(len(x), np.int64) if y is None else np.asarray(y)
    return dataset("made", "train", Samples(x, labels, tuple(map(str, range(classes)))))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((3, 32, 32), "image"), ((100, 40), "frames"), ((256,), "tokens"), ((1, 1, 1), "image"), ((3, 8, 9, 9), "values")],
)
def test_the_rank_determines_the_kind(shape: tuple[int, ...], kind: str) -> None:
    assert kind_of(shape) == kind


@pytest.mark.parametrize("shape", [(), (1, 2, 0, 4), (3, 0, 5), (-1,)])
def test_an_impossible_shape_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="expected a sample shape"):
        kind_of(shape)


def test_mean_and_deviation_are_numpys() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(256, size=(2500, 3, 4, 5)).astype(np.uint8)  # more than two chunks, the last one short
    scaled = x.astype(np.float64) / 255
    assert made(x).mean == pytest.approx(scaled.mean((0, 2, 3)), rel=1e-6)
    assert made(x).std == pytest.approx(scaled.std((0, 2, 3)), rel=1e-6)
    frames = rng.normal(5, 2, size=(50, 7, 4)).astype(np.float32)
    assert made(frames).mean == pytest.approx(frames.mean((0, 1)), rel=1e-5)
    assert made(frames).std == pytest.approx(frames.std((0, 1)), rel=1e-5)


def test_a_constant_channel_is_divided_by_one() -> None:
    assert made(np.full((4, 1, 2, 2), 77, np.uint8)).std == (1.0,)
    assert made(np.full((4, 3, 2), 1e-3, np.float32)).std == (1.0, 1.0)


def test_tokens_have_no_mean() -> None:
    data = made(np.zeros((4, 6), np.int64), np.zeros((4, 6), np.int64))
    assert (data.kind, data.mean, data.std, data.shape, len(data)) == ("tokens", (), (), (6,), 4)


def test_bytes_become_fractions() -> None:
    assert to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert to_float(torch.tensor([2.0])).item() == 2


@pytest.mark.parametrize(
    ("items", "labels", "message"),
    [
        (4, [0, 1, 2], "one label for each sample and at least one, got 3 for 4"),
        (0, [], "got 0 for 0"),
        (2, [0, 3], "labels from 0 to 2, got 0 to 3"),
        (2, [-1, 0], "labels from 0 to 2, got -1 to 0"),
    ],
)
def test_labels_that_do_not_fit_are_rejected(items: int, labels: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(np.zeros((items, 1, 2, 2), np.uint8), np.array(labels, np.int64))
