"""Reads named arrays from .npz files, without pickle. Any damage is reported as a UsageError."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError

LARGEST, RATIO = 64 << 20, 250
"""Bytes of an array from which on it may not be packed more tightly than so many times: such a file is a zip bomb."""

# Exceptions of a damaged zip or .npy; RuntimeError: encrypted, or an unsupported compression.
_DAMAGE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    MemoryError,
)
try:
    from lzma import LZMAError

    _DAMAGE += (LZMAError,)
except ImportError:  # a Python built without lzma raises RuntimeError instead
    pass


def keys(path: Path) -> frozenset[str]:
    """Names of the arrays; none if the file is not a zip archive.

    Raises:
        UsageError: a damaged archive.
    """
    with path.open("rb") as stream:
        if stream.read(4) != b"PK\x03\x04":
            return frozenset()
    with _opened(path) as archive:
        return frozenset(archive.files)


def arrays(path: Path, *names: str) -> list[NDArray[np.generic]]:
    """The arrays called ``names``, in that order.

    Raises:
        UsageError: one is missing, damaged, or of Python objects.
    """
    with _opened(path) as archive:
        missing = [name for name in names if name not in archive.files]
        if missing:
            raise UsageError(f"{path}: expected the arrays {', '.join(names)}, found no {', '.join(missing)}")
        for name in names:
            _require_plausible(archive, name)
        found = [archive[name] for name in names]
        for name, array in zip(names, found, strict=True):
            if not isinstance(array, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError(f"{name} is no array")
        return found


def _require_plausible(archive: np.lib.npyio.NpzFile, name: str) -> None:
    """Refuse an array that unpacks to much more than its file holds, before it fills the memory."""
    member = next(one for one in archive.zip.infolist() if one.filename in (name, f"{name}.npy"))
    if member.file_size > max(LARGEST, RATIO * member.compress_size):
        size, packed = member.file_size >> 20, member.compress_size >> 10
        raise ValueError(f"{name} unpacks from {packed} KiB to {size} MiB; save it without compression")


def whole_numbers(array: NDArray[np.generic], path: Path, name: str) -> NDArray[np.int64]:
    """``array`` as one axis of int64.

    Raises:
        UsageError: it has another number of axes, or is not of integers.
    """
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise UsageError(f"{path}: expected {name} as one axis of integers, got {_described(array)}")
    return array.astype(np.int64)


def unsigned_bytes(array: NDArray[np.generic], path: Path, name: str, axes: tuple[int, ...]) -> NDArray[np.uint8]:
    """``array`` itself.

    Raises:
        UsageError: it is not uint8, or its number of axes is not among ``axes``.
    """
    if array.ndim not in axes or array.dtype != np.uint8:
        wanted = " or ".join(map(str, axes))
        raise UsageError(f"{path}: expected {name} as uint8 of {wanted} axes, got {_described(array)}")
    return array.view(np.uint8)


def _described(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} of shape {array.shape}"


@contextmanager
def _opened(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    try:
        # Opened here, because numpy does not close the file of a damaged archive that it opened itself.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            yield archive
    except _DAMAGE as error:
        raise UsageError(
            f"{path}: expected an .npz file of plain arrays, got one that cannot be read: {error}"
        ) from error
