"""The binary format of CIFAR-10:  records of one label byte and 3x32x32 pixel bytes (Krizhevsky 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina.build.data.dataset import Samples
from lamina.errors import UsageError

FORM = "a folder of CIFAR-10 binary files (data_batch_*.bin, test_batch.bin)"

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_PATTERNS = {"train": "data_batch_*.bin", "test": "test_batch.bin"}


def splits(path: Path) -> tuple[str, ...]:
    """Splits for which this folder has batches; none if it has no CIFAR-10 files."""
    return tuple(split for split, pattern in _PATTERNS.items() if path.is_dir() and any(path.glob(pattern)))


def read(path: Path, split: str) -> Samples:
    """Images ``(N, 3, 32, 32)`` and labels of every batch of one split.

    Raises:
        UsageError: a batch has an incomplete record.
    """
    batches = [parse(file.read_bytes(), str(file)) for file in sorted(path.glob(_PATTERNS[split]))]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return Samples(x, y, CLASSES)


def parse(data: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images and labels of one batch.

    Raises:
        UsageError: the size is not a multiple of the record size, or a label is above 9.
    """
    if not data or len(data) % _RECORD:
        raise UsageError(
            f"{name}: expected whole records of {_RECORD} bytes, got {len(data)} bytes "
            f"({len(data) // _RECORD} records and {len(data) % _RECORD} bytes); the file is damaged"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() >= len(CLASSES):
        at = int(labels.argmax())
        raise UsageError(f"{name}: expected labels from 0 to 9, got {labels[at]} in record {at}; not CIFAR-10 data")
    return records[:, 1:].reshape(-1, *_SHAPE).copy(), labels.copy()
