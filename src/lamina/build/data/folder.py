"""Image folders: one subfolder per class, optionally below one folder per split."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low

import numpy as np

from lamina.build.data import images
from lamina.build.data.dataset import Samples
from lamina.errors import UsageError

FORM = "a folder of images (train/CLASS/*.png or *.jpg, test/CLASS/*, val/CLASS/*; CLASS/* alone is a train split)"

_SUFFIXES = {".png", ".jpg", ".jpeg"}
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "validation", "valid"),
}
_MAX_SIDE = 224
_MAX_BYTES = 8 * 2**30


def splits(path: Path) -> tuple[str, ...]:
    """Splits with images in this folder; only ``train`` if the class folders are directly in it."""
    return tuple(_roots(path))


def read(path: Path, split: str) -> Samples:
    """Images ``(N, 3, side, side)``: center crops, resized to the median image side, at most 224 pixels.

    Classes are the sorted folder names of the train split, so that all splits have the same class indices.

    Raises:
        UsageError: a class that is not in the train split, a damaged image, or more than 8 GiB of decoded images.
        MissingError: Pillow is not installed.
    """
    roots = _roots(path)
    classes = _classes(roots.get("train", roots[split]))
    unknown = sorted(set(_classes(roots[split])) - set(classes))
    if unknown:
        raise UsageError(f"{roots[split]}: expected only classes of the train split, also got {', '.join(unknown)}")
    files = [(file, label) for label, name in enumerate(classes) for file in _images(roots[split] / name)]
    side = min(_MAX_SIDE, median_low(min(images.size(file)) for file, _ in files))
    if len(files) * 3 * side**2 > _MAX_BYTES:
        raise UsageError(
            f"{roots[split]}: expected at most {_MAX_BYTES / 2**30:.0f} GiB of decoded images, all "
            f"kept in memory, got {len(files)} of {side}x{side}; use a folder with fewer or smaller images"
        )
    x = np.empty((len(files), 3, side, side), np.uint8)
    for index, (file, _) in enumerate(files):
        x[index] = images.decode(file, str(file), side)
    return Samples(x, np.array([label for _, label in files]), classes)


def _roots(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return {}
    named = {
        split: path / name for split, names in _SPLIT_NAMES.items() for name in reversed(names) if _classes(path / name)
    }
    return named or ({"train": path} if _classes(path) else {})


def _classes(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _images(entry)))


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
