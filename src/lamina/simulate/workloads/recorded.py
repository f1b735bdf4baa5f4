"""Masks recorded in training: packed bits in an .npz file without Python objects."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError
from lamina.simulate.workloads.columns import Mask

KINDS = {"names": "texts", "iterations": "int64", "shapes": "int64", "bits": "uint8"}
"""Arrays of a file and their types; ``bits`` are the concatenated masks, eight values per byte."""
PROVENANCE = "provenance"
"""The array with a JSON text that says where the masks are from; files without it are read too."""
SHIPPED = Path(__file__).parent / "masks"
"""The folder of masks that the package has, each of a training with ``lamina sparsity`` on its own data."""


@dataclass(frozen=True)
class RecordedMask:
    """The mask of non-zeros of a layer's input at one iteration: ``mask`` is [N, C, H, W]."""

    name: str
    iteration: int
    mask: Mask = field(repr=False)

    @property
    def density(self) -> float:
        """Fraction of non-zeros."""
        return float(self.mask.mean())

    def of(self, shape: tuple[int, int, int, int]) -> Mask:
        """The mask for another batch size: its first images, or its images repeated.

        Raises:
            UsageError: channels, height or width differ.
        """
        if self.mask.shape[1:] != tuple(shape[1:]):
            raise UsageError(
                f"mask of {self.name!r}: expected images of {list(shape[1:])}, got {list(self.mask.shape[1:])}"
            )
        return np.take(self.mask, np.arange(shape[0]) % len(self.mask), axis=0)


def shipped_masks(name: str) -> Path:
    """The file of shipped masks of this name, or else the file of this path."""
    return SHIPPED / f"{name}.npz" if name in mask_names() else Path(name)


def mask_names() -> tuple[str, ...]:
    """The names of the shipped masks."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.npz")))


def write_masks(path: Path, masks: Sequence[RecordedMask], provenance: Mapping[str, Any] | None = None) -> None:
    """Write masks to a file that :func:`read_masks` reads.

    Args:
        path: the ``.npz`` file.
        masks: in the order of the file.
        provenance: where they are from, JSON-serializable: command, data, device, commit, date.

    Raises:
        UsageError: there are none, one is empty or does not have four axes, or the file cannot be written.
    """
    if not masks:
        raise UsageError(f"{path}: expected at least one mask to write")
    for each in masks:
        if each.mask.ndim != 4 or not each.mask.size or each.mask.dtype != np.bool_:
            raise UsageError(
                f"{path}: mask of {each.name!r}: expected booleans [N, C, H, W], at least one, "
                f"got {each.mask.dtype} {list(each.mask.shape)}"
            )
        if not each.name or "\0" in each.name or not 0 <= each.iteration < 2**63:
            raise UsageError(
                f"{path}: expected a name and an iteration of at least 0, got {each.name!r}, {each.iteration}"
            )
    arrays: dict[str, Any] = {
        "names": np.array([each.name for each in masks]),
        "iterations": np.array([each.iteration for each in masks], dtype=np.int64),
        "shapes": np.array([each.mask.shape for each in masks], dtype=np.int64),
        "bits": np.concatenate([np.packbits(each.mask) for each in masks]),
    }
    if provenance:
        arrays[PROVENANCE] = np.array(json.dumps(provenance))
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_masks(path: Path) -> tuple[RecordedMask, ...]:
    """The masks of a file.

    Raises:
        UsageError: the file cannot be read or is not a file of masks.
    """
    arrays = _arrays(path)
    names, iterations, shapes, bits = (arrays[key] for key in KINDS)
    if shapes.ndim != 2 or shapes.shape != (len(names), 4) or names.shape != iterations.shape or bits.ndim != 1:
        raise UsageError(
            f"{path}: expected a name, an iteration and a shape of four sizes for each mask, got "
            f"{list(names.shape)}, {list(iterations.shape)} and {list(shapes.shape)}"
        )
    if not len(names) or shapes.min() < 1 or iterations.min() < 0:
        raise UsageError(f"{path}: expected masks of positive sizes and iterations of at least 0")
    sizes = [[int(size) for size in shape] for shape in shapes]
    lengths = [-(-prod(shape) // 8) for shape in sizes]
    if sum(lengths) != bits.size:
        raise UsageError(f"{path}: expected {sum(lengths)} bytes of bits for its shapes, got {bits.size}")
    masks, start = [], 0
    for name, iteration, shape, length in zip(names, iterations, sizes, lengths, strict=True):
        values = np.unpackbits(bits[start : start + length], count=prod(shape)).astype(np.bool_)
        masks.append(RecordedMask(str(name), int(iteration), values.reshape(shape)))
        start += length
    return tuple(masks)


def provenance_of(path: Path) -> dict[str, Any]:
    """Where the masks of a file are from, as :func:`write_masks` wrote it; empty if it does not say.

    Raises:
        UsageError: the file cannot be read or is not a file of masks.
    """
    _arrays(path)
    with np.load(path, allow_pickle=False) as file:
        found = json.loads(str(file[PROVENANCE])) if PROVENANCE in file.files else {}
    assert isinstance(found, dict)
    return found


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file, checked for presence and type."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [key for key in KINDS if f"{key}.npy" not in archive.namelist()]
        if missing:
            raise UsageError(f"{path}: expected the arrays {', '.join(KINDS)}, {', '.join(missing)} missing")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in KINDS}
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise UsageError(f"{path}: expected a .npz file of masks: {error}") from None
    for key, wanted in KINDS.items():
        got = "texts" if arrays[key].dtype.kind == "U" else str(arrays[key].dtype)
        if got != wanted:
            raise UsageError(f"{path}: {key}: expected {wanted}, got {got}")
    return arrays
