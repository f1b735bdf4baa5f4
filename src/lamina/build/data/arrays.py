""".npz files with arrays x_train, y_train, x_test, y_test."""

from __future__ import annotations

from pathlib import Path

from lamina.build.data import archive
from lamina.build.data.dataset import Samples, numbered
from lamina.errors import UsageError

FORM = "an .npz of x_train, y_train, x_test, y_test (uint8 N,H,W or N,H,W,C; optionally class_names)"


def splits(path: Path) -> tuple[str, ...]:
    """Splits for which the file has images and labels."""
    keys = archive.keys(path) if path.is_file() else frozenset()
    return tuple(split for split in ("train", "test", "val") if {f"x_{split}", f"y_{split}"} <= keys)


def read(path: Path, split: str) -> Samples:
    """Images ``(N, C, H, W)`` and labels of one split.

    Raises:
        UsageError: the arrays are damaged or not in this format.
    """
    x, y = archive.arrays(path, f"x_{split}", f"y_{split}")
    images = archive.unsigned_bytes(x, path, f"x_{split}", axes=(3, 4))
    labels = archive.whole_numbers(y, path, f"y_{split}")
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[3] not in (1, 3):
        raise UsageError(
            f"{path}: expected x_{split} as N,H,W,C with 1 or 3 channels last, got the shape {images.shape}"
        )
    if "class_names" in archive.keys(path):
        (names,) = archive.arrays(path, "class_names")
        classes = tuple(map(str, names.ravel()))
    else:
        classes = numbered(labels)
    return Samples(images.transpose(0, 3, 1, 2), labels, classes)
