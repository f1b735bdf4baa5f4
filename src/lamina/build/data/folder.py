"""Pictures in folders: one sub-folder for each class, with or without a level of splits above."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low

import numpy as np

from lamina.build.data import pictures
from lamina.build.data.dataset import Samples
from lamina.errors import UsageError

FORM = "a folder of pictures (CLASS/*.png or *.jpg, or train/CLASS/*, test/CLASS/*, val/CLASS/*)"

_SUFFIXES = {".png", ".jpg", ".jpeg"}
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "validation", "valid"),
}
_LARGEST_SIDE = 224
_LARGEST_BYTES = 8 * 2**30


def splits(path: Path) -> tuple[str, ...]:
    """Splits with pictures in this folder; ``train`` alone where the classes stand directly in it."""
    return tuple(_roots(path))


def read(path: Path, split: str) -> Samples:
    """Images ``(N, 3, side, side)``: centre squares as wide as the median picture, at most 224 pixels.

    Classes are the sorted folder names of the train split, so that all splits number them alike.

    Raises:
        UsageError: a class the train split lacks, a damaged picture, or more than 8 GiB of decoded pictures.
        MissingError: Pillow is not installed.
    """
    roots = _roots(path)
    classes = _classes(roots.get("train", roots[split]))
    strange = sorted(set(_classes(roots[split])) - set(classes))
    if strange:
        raise UsageError(f"{roots[split]}: expected only classes of the train split, also got {', '.join(strange)}")
    files = [(file, label) for label, name in enumerate(classes) for file in _pictures(roots[split] / name)]
    side = min(_LARGEST_SIDE, median_low(min(pictures.size(file)) for file, _ in files))
    if len(files) * 3 * side**2 > _LARGEST_BYTES:
        raise UsageError(
            f"{roots[split]}: expected at most {_LARGEST_BYTES / 2**30:.0f} GiB of decoded pictures, all "
            f"held in memory, got {len(files)} of {side}x{side}; give a folder with fewer or smaller ones"
        )
    x = np.empty((len(files), 3, side, side), np.uint8)
    for place, (file, _) in enumerate(files):
        x[place] = pictures.decode(file, str(file), side)
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
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and _pictures(entry)))


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)
