"""Names, paths, and what is said of content nobody understands."""

from pathlib import Path

import numpy as np
import pytest

from lamina.build.data import DATASETS, load, train_test
from lamina.errors import UsageError


def test_the_shipped_set_is_balanced_fashion_mnist() -> None:
    train, test = train_test("fashion-mnist")
    assert (train.x.shape, test.x.shape) == ((6500, 1, 28, 28), (1000, 1, 28, 28))
    assert np.bincount(train.y).tolist() == [650] * 10
    assert np.bincount(test.y).tolist() == [100] * 10
    assert train.classes[0] == "T-shirt/top"
    assert train.classes[9] == "Ankle boot"
    assert train.licence == "MIT, (c) 2017 Zalando SE"
    # Of the full training set: mean 0.2860, deviation 0.3530.
    assert train.mean == pytest.approx((0.2860,), abs=0.003)
    assert train.std == pytest.approx((0.3530,), abs=0.003)


def test_shipped_images_are_what_their_labels_say() -> None:
    """The nearest class mean, a classifier of one line, scores far above chance."""
    train, test = train_test("fashion-mnist")
    x, xt = (data.x.flatten(1).float() for data in (train, test))
    means = np.stack([x[train.y == label].mean(0) for label in range(10)])
    distance = ((xt[:, None].numpy() - means) ** 2).sum(2)
    assert (distance.argmin(1) == test.y.numpy()).mean() > 0.6


def test_no_test_image_is_a_train_image() -> None:
    train, test = train_test("fashion-mnist")
    assert not {x.tobytes() for x in train.x.numpy()} & {x.tobytes() for x in test.x.numpy()}


def test_every_named_set_has_both_splits() -> None:
    for name in DATASETS:
        train, test = train_test(name)
        assert (train.split, test.split, train.name) == ("train", "test", name)


def test_an_unknown_name_comes_with_the_closest_match() -> None:
    with pytest.raises(UsageError, match="neither a dataset nor an existing path: did you mean 'fashion-mnist'"):
        load("fashion_mnist")


def test_an_unknown_split_of_the_shipped_set_is_rejected() -> None:
    with pytest.raises(UsageError, match="has no split 'tests': did you mean 'test'"):
        load("fashion-mnist", "tests")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "a file of 0 bytes beginning with nothing"),
        (b"hello, world", "a file of 12 bytes beginning 68 65 6c 6c 6f 2c 20 77"),
        (None, "a folder of 2 entries: a.csv, b"),
    ],
)
def test_content_not_understood_is_described(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "thing.npz"
    if content is None:
        (path / "b").mkdir(parents=True)
        (path / "a.csv").touch()
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.endswith(f"got {found}")
    for form in ("x_train", "jpeg_header", "wave", "train-images-idx3-ubyte", "data_batch_", "CLASS/*.png"):
        assert form in message


def test_unknown_arrays_are_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros(3), labels=np.zeros(3))
    with pytest.raises(UsageError, match="got an archive of the arrays images, labels"):
        load(tmp_path / "a.npz")


def test_names_take_precedence_over_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the working folder never shadows a set's name."""
    monkeypatch.chdir(tmp_path)
    Path("fashion-mnist").write_text("mine")
    assert load("fashion-mnist").name == "fashion-mnist"
