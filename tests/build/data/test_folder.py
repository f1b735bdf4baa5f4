from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lamina.build.data import load
from lamina.errors import UsageError


def image(path: Path, value: int, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 255 - value)).save(path)


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for value, name in enumerate(("dog/1.png", "dog/2.PNG", "cat/1.jpg")):
        image(tmp_path / name, 10 * value)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_folders_are_classes_in_alphabetical_order(flat: Path) -> None:
    data = load(flat)
    assert data.classes == ("cat", "dog")
    assert data.y.tolist() == [0, 1, 1]
    assert data.x.shape == (3, 3, 8, 8)
    assert data.x[1:, 0, 0, 0].tolist() == [0, 10]


def test_a_flat_folder_is_all_train(flat: Path) -> None:
    with pytest.raises(UsageError, match="has no split 'test': expected one of: train") as refused:
        load(flat, "test")
    layout = "(train/CLASS/*.png or *.jpg, test/CLASS/*, val/CLASS/*; CLASS/* alone is a train split)"
    assert str(refused.value).endswith(f"to add it, make the data a folder of images {layout}")


@pytest.mark.parametrize("name", ["val", "validation"])
def test_folders_of_splits(tmp_path: Path, name: str) -> None:
    for split, classes in (("train", ("b", "a", "c")), ("test", ("c",)), (name, ("a", "b"))):
        for label in classes:
            image(tmp_path / split / label / "x.png", ord(label))
    assert load(tmp_path).classes == load(tmp_path, "test").classes == ("a", "b", "c")
    test = load(tmp_path, "test")
    assert (test.y.tolist(), int(test.x[0, 0, 0, 0])) == ([2], ord("c"))
    assert load(tmp_path, "val").y.tolist() == [0, 1]


def test_a_class_only_the_test_split_has_is_rejected(tmp_path: Path) -> None:
    image(tmp_path / "train" / "a" / "x.png", 0)
    image(tmp_path / "test" / "b" / "x.png", 0)
    with pytest.raises(UsageError, match="expected only classes of the train split, also got b"):
        load(tmp_path, "test")


def test_images_of_many_sizes_take_the_median_side(tmp_path: Path) -> None:
    for index, size in enumerate([(4, 9), (12, 6), (100, 50)]):
        image(tmp_path / "a" / f"{index}.png", 7, size)
    assert load(tmp_path).x.shape == (3, 3, 6, 6)
    image(tmp_path / "a" / "0.png", 7, (500, 400))
    image(tmp_path / "a" / "1.png", 7, (500, 400))
    assert load(tmp_path).x.shape == (3, 3, 224, 224)
    assert np.ptp(load(tmp_path).x[:, 0].numpy()) == 0


def test_a_damaged_image_is_named(flat: Path) -> None:
    (flat / "dog" / "2.PNG").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(UsageError, match=r"2\.PNG: expected a PNG or JPEG image"):
        load(flat)


def test_more_than_fits_in_memory_is_rejected(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.build.data.folder._MAX_BYTES", 3 * 3 * 8 * 8 - 1)
    with pytest.raises(UsageError, match="got 3 of 8x8; use a folder with fewer or smaller images"):
        load(flat)
