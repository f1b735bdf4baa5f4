from pathlib import Path

import numpy as np
import pytest

from lamina.build.data import load, train_test
from lamina.errors import UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.npz"


def grey(items: int) -> np.ndarray:
    return np.arange(items * 12, dtype=np.uint8).reshape(items, 3, 4)


def test_grey_images_gain_a_channel(path: Path) -> None:
    np.savez(path, x_train=grey(4), y_train=[0, 1, 2, 1], x_test=grey(2), y_test=[0, 1])
    data = load(path)
    assert data.x.shape == (4, 1, 3, 4)
    assert data.x[1, 0].tolist() == grey(4)[1].tolist()
    assert data.y.tolist() == [0, 1, 2, 1]


def test_colours_move_to_the_front(path: Path) -> None:
    x = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(path, x_train=x, y_train=[0, 1], class_names=["cat", "dog"])
    data = load(path)
    assert data.x.shape == (2, 3, 4, 5)
    assert data.x[1, 2, 3, 4] == x[1, 3, 4, 2]
    assert data.classes == ("cat", "dog")


def test_the_test_split_uses_the_statistics_of_the_train_split(path: Path) -> None:
    np.savez(path, x_train=grey(4), y_train=[0, 1, 2, 1], x_test=grey(2) + 100, y_test=[0, 1])
    train, test = train_test(path)
    assert test.classes == train.classes == ("0", "1", "2")
    assert (test.mean, test.std) == (train.mean, train.std)
    assert test.mean != load(path, "test").mean


def test_a_class_only_the_test_split_has_is_rejected(path: Path) -> None:
    np.savez(path, x_train=grey(2), y_train=[0, 1], x_test=grey(2), y_test=[0, 2])
    with pytest.raises(UsageError, match=r"of 2 classes, got .* labels up to 2"):
        train_test(path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x_train": grey(2).astype(float)}, "x_train as uint8 of 3 or 4 axes, got float64"),
        ({"x_train": grey(2)[:, None]}, r"1 or 3 channels last, got the shape \(2, 1, 3, 4\)"),
        ({"x_train": grey(3)}, "one label for each sample and at least one, got 2 for 3"),
        ({"y_train": [0.5, 1]}, "y_train as one axis of integers"),
        ({"class_names": ["only"]}, "labels from 0 to 0, got 0 to 1"),
        ({"x_train": grey(0), "y_train": np.zeros(0, int)}, "at least one, got 0 for 0"),
    ],
)
def test_wrong_arrays_are_explained(path: Path, members: dict[str, object], message: str) -> None:
    np.savez(path, **{"x_train": grey(2), "y_train": [0, 1]} | members)
    with pytest.raises(UsageError, match=message):
        load(path)
