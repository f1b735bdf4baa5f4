"""IDX files, the format of MNIST and similar datasets, plain or gzipped.

Two zero bytes, a type code (8: uint8), the number of axes, each axis as a big-endian 32-bit integer, then the
data (LeCun, the MNIST database).
"""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina.build.data.dataset import Samples, numbered
from lamina.errors import UsageError

FORM = "a folder of IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., also .gz)"

_IMAGES, _LABELS = b"\0\0\x08\x03", b"\0\0\x08\x01"
_GZIP = b"\x1f\x8b"
_PIECE, _FREE, _RATIO = 1 << 20, 64 << 20, 250
"""Bytes that are unpacked at a time; a packed file may unpack to so many bytes, or so many times its size."""


def splits(path: Path) -> tuple[str, ...]:
    """Splits for which this folder has images; none if it has no IDX files."""
    return tuple(split for split in ("train", "test") if path.is_dir() and _find(path, split, _IMAGES))


def read(path: Path, split: str) -> Samples:
    """Images ``(N, 1, H, W)`` and labels of one split. Classes are named by their indices.

    Raises:
        UsageError: a file is missing, there are several, or it does not match its header.
    """
    images, labels = (_only(path, split, magic) for magic in (_IMAGES, _LABELS))
    x, y = parse(content(images), str(images)), parse(content(labels), str(labels))
    return Samples(x[:, None], y, numbered(y))


def parse(data: bytes, name: str) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes.

    Raises:
        UsageError: the header is not that of an IDX file, or the data does not have the size that it gives.
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UsageError(
            f"{name}: expected IDX data of unsigned bytes (00 00 08 ..), got {data[:4].hex(' ') or 'nothing'}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise UsageError(
            f"{name}: expected a header of {start} bytes for {data[3]} axes, got a file of {len(data)} bytes"
        )
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) - start != prod(shape):
        raise UsageError(
            f"{name}: expected {prod(shape)} bytes of data for the shape {shape}, got {len(data) - start}; "
            "the file is damaged, download it again"
        )
    try:
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()
    except ValueError as error:  # no data, and the other axes larger than NumPy's arrays
        raise UsageError(f"{name}: expected the shape of an array, got {shape}: {error}") from error


def _find(path: Path, split: str, magic: bytes) -> list[Path]:
    marks = ("train",) if split == "train" else ("t10k", "test")
    named = (file for file in sorted(path.iterdir()) if any(mark in file.name for mark in marks))
    found: dict[str, Path] = {}
    for file in named:
        if file.is_file() and _head(file) == magic:
            found.setdefault(file.name.removesuffix(".gz"), file)
    return list(found.values())


def _only(path: Path, split: str, magic: bytes) -> Path:
    found = _find(path, split, magic)
    what = "images" if magic == _IMAGES else "labels"
    if len(found) != 1:
        listing = ", ".join(file.name for file in found) or "none"
        raise UsageError(f"{path}: expected one IDX file of {split} {what}, got {listing}")
    return found[0]


def _head(file: Path) -> bytes:
    with file.open("rb") as stream:
        head = stream.read(4)
    if head[:2] != _GZIP:
        return head
    try:
        with gzip.open(file) as unpacked:
            return unpacked.read(4)
    except (OSError, EOFError, zlib.error):
        return b""


def content(file: Path) -> bytes:
    """The bytes of a file, unpacked.

    Raises:
        UsageError: a damaged gzip file, or one that unpacks to far more than it holds.
    """
    if _packed(file):
        return _unpacked(file)
    return file.read_bytes()


def _packed(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == _GZIP


def _unpacked(file: Path) -> bytes:
    """At most one byte more than the header says, and no bomb: a file of a few MiB may unpack to many GiB."""
    most = max(_FREE, _RATIO * file.stat().st_size)
    try:
        with gzip.open(file) as stream:
            head = stream.read(4)
            head += stream.read(4 * head[3]) if len(head) == 4 else b""
            size = prod(int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4))
            if size > most:
                raise UsageError(f"{file}: unpacks to over {_RATIO} times its size; unpack it yourself if you trust it")
            left = size + 1
            pieces = [head]
            while left > 0 and (piece := stream.read(min(left, _PIECE))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"{file}: expected a complete gzip file, got a damaged one ({error}); download it again"
        ) from error
