"""In-memory datasets by name or by path. The format of a file is detected from its content, not from its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Protocol

from lamina.build.data import arrays, cifar, folder, idx, jpeg_scan, speech
from lamina.build.data.archive import keys
from lamina.build.data.batch import as_batch, samples
from lamina.build.data.dataset import Dataset, Kind, Samples, dataset
from lamina.build.data.drawn import Data, Drawn, batches
from lamina.build.data.loader import loader, steps
from lamina.build.data.synthetic import synthetic
from lamina.errors import UsageError, nearest

__all__ = [
    "DATASETS",
    "Data",
    "Dataset",
    "Drawn",
    "Kind",
    "as_batch",
    "batches",
    "load",
    "loader",
    "samples",
    "steps",
    "synthetic",
    "train_test",
]


class Format(Protocol):
    """A file or folder format: its description, the splits that a path contains, and a reader of one split."""

    FORM: str

    def splits(self, path: Path, /) -> tuple[str, ...]: ...

    def read(self, path: Path, split: str, /) -> Samples: ...


_FORMATS: tuple[Format, ...] = (arrays, jpeg_scan, speech, idx, cifar, folder)


def load(source: str | Path, split: str = "train") -> Dataset:
    """One split of a dataset: a name of ``DATASETS``, or the path of a file or folder.

    Raises:
        UsageError: no such name or path, no such split, or damaged or unknown content.
        MissingError: images must be decoded and Pillow is not installed.
    """
    if source in DATASETS:
        return DATASETS[str(source)](split)
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{str(source)!r} is neither a dataset nor an existing path: {nearest(str(source), DATASETS)}")
    return _read(path, split)


def train_test(source: str | Path) -> tuple[Dataset, Dataset]:
    """The train and test splits; the test split uses the classes, mean and standard deviation of the train split.

    Raises:
        UsageError: as :func:`load`, or the test split has a class or a shape that is not in the train split.
    """
    train, test = load(source, "train"), load(source, "test")
    if test.shape[0] != train.shape[0] or int(test.y.max()) >= len(train.classes):
        raise UsageError(
            f"{source}: expected test samples like {train.shape} of {len(train.classes)} classes, "
            f"got {test.shape} with labels up to {int(test.y.max())}"
        )
    return train, replace(test, classes=train.classes, mean=train.mean, std=train.std)


def _read(path: Path, split: str, name: str | None = None, licence: str = "unknown", source: str = "") -> Dataset:
    for form in _FORMATS:
        known = form.splits(path)
        if not known:
            continue
        if split not in known:
            raise UsageError(
                f"{path} has no split {split!r}: {nearest(split, known)}\nto add it, make the data {form.FORM}"
            )
        return dataset(name or str(path), split, form.read(path, split), licence, source or str(path))
    formats = "\n".join(f"  {form.FORM}" for form in _FORMATS)
    raise UsageError(f"{path}: expected one of\n{formats}\ngot {_found(path)}")


def _found(path: Path) -> str:
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        return f"a folder of {len(names)} entries: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    if names := sorted(keys(path)):
        return f"an archive of the arrays {', '.join(names)}"
    with path.open("rb") as stream:
        return f"a file of {path.stat().st_size} bytes beginning {stream.read(8).hex(' ') or 'with nothing'}"


def _fashion_mnist(split: str) -> Dataset:
    with as_file(files("lamina") / "assets" / "fashion_mnist.npz") as path:
        return _read(
            path,
            split,
            name="fashion-mnist",
            licence="MIT, (c) 2017 Zalando SE",
            source="balanced subset of Fashion-MNIST (Xiao, Rasul, Vollgraf, arXiv:1708.07747)",
        )


DATASETS: dict[str, Callable[[str], Dataset]] = {
    "fashion-mnist": _fashion_mnist,
    "synthetic": lambda split: synthetic(split=split),
}
"""Datasets that need no file: a function of the split, by name."""
