import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lamina.build.data import load
from lamina.errors import UsageError

PIXELS = np.random.default_rng(0).integers(256, size=(4, 8, 16, 3)).astype(np.uint8)


def members() -> dict[str, np.ndarray]:
    """Four JPEGs of one size taken apart: the part up to the first scan byte is the same in all."""
    files = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=80)
        files.append(stream.getvalue())
    start = files[0].index(b"\xff\xda")
    start += 2 + int.from_bytes(files[0][start + 2 : start + 4], "big")
    assert len({file[:start] for file in files}) == 1
    scans = [file[start:-2] for file in files]
    return {
        "jpeg_header": np.frombuffer(files[0][:start], np.uint8),
        "class_names": np.array(["cat", "dog"]),
        "scan_train": np.frombuffer(b"".join(scans), np.uint8),
        "offs_train": np.cumsum([0, *map(len, scans)]),
        "y_train": np.array([0, 1, 1, 0], np.uint8),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scans.npz"


def test_images_are_assembled_and_decoded(path: Path) -> None:
    np.savez(path, **members())
    data = load(path)
    assert (data.classes, data.y.tolist()) == (("cat", "dog"), [0, 1, 1, 0])
    for index, pixels in enumerate(PIXELS):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=80)
        expected = np.asarray(Image.open(stream)).transpose(2, 0, 1)
        np.testing.assert_array_equal(data.x[index].numpy(), expected)


def test_only_existing_splits_are_listed(path: Path) -> None:
    np.savez(path, **members())
    with pytest.raises(UsageError, match="has no split 'val': expected one of: train"):
        load(path, "val")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("offs_train", lambda a: a[:-1], "expected offs_train as 5 increasing offsets"),
        ("offs_train", lambda a: a[[0, 2, 1, 3, 4]], "increasing offsets"),
        ("offs_train", lambda a: a * 2, "increasing offsets from 0 to"),
        ("offs_train", lambda a: a[:0], "increasing offsets"),
        ("offs_train", lambda a: a.astype(float), "offs_train as one axis of integers"),
        ("scan_train", lambda a: a.astype(np.int32), "scan_train as uint8"),
        ("jpeg_header", lambda a: a[:40], "train image 0: expected a PNG or JPEG"),
        ("y_train", lambda a: a + 1, "labels from 0 to 1, got 1 to 2"),
    ],
)
def test_damage_is_explained(path: Path, name: str, change: object, message: str) -> None:
    arrays = members()
    np.savez(path, **arrays | {name: change(arrays[name])})
    with pytest.raises(UsageError, match=message):
        load(path)
