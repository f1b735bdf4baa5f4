"""In-memory datasets: samples, labels and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.errors import UsageError

Kind = Literal["image", "frames", "tokens", "values"]
"""The type of a sample: an image (C, H, W), feature frames (T, F), token indices (T,), or values of any other shape."""

_KINDS: dict[int, Kind] = {3: "image", 2: "frames"}
_CHUNK = 1024
_CONSTANT = 1e-6


def kind_of(shape: Sequence[int], indices: bool | None = None) -> Kind:
    """The kind of a sample, from its shape and whether it consists of indices; by default, (T,) does.

    Raises:
        UsageError: a shape without positive sizes, or indices that are not (T,).
    """
    indices = len(shape) == 1 if indices is None else indices
    if not shape or min(shape) < 1 or (indices and len(shape) != 1):
        raise UsageError(f"expected a sample shape of positive sizes, (T,) for indices, got {tuple(shape)}")
    return "tokens" if indices else _KINDS.get(len(shape), "values")


class Samples(NamedTuple):
    """The content of a file: arrays as stored, and class names."""

    x: NDArray[np.generic]
    y: NDArray[np.generic]
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a dataset.

    ``x``: images ``(N, C, H, W)`` uint8 or float32, frames ``(N, T, F)`` float32, tokens ``(N, T)`` int64, or values
    ``(N, ...)`` float32.
    ``y``: int64, ``(N,)``; for tokens ``(N, T)``, the next token at each position.
    ``mean``, ``std``: per channel or feature, with uint8 scaled to 0..1; empty for tokens and values.
    """

    name: str
    split: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str = "unknown"
    source: str = "unknown"

    @property
    def kind(self) -> Kind:
        """The type of a sample."""
        return kind_of(self.shape, self.x.dtype == torch.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return tuple(self.x.shape[1:])

    def __len__(self) -> int:
        return len(self.x)


def numbered(labels: NDArray[np.integer[Any]]) -> tuple[str, ...]:
    """Names for unnamed classes: their indices."""
    return tuple(map(str, range(int(labels.max()) + 1))) if labels.size else ()


def to_float(x: Tensor) -> Tensor:
    """float32, with uint8 scaled to 0..1."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def dataset(name: str, split: str, samples: Samples, licence: str = "unknown", source: str = "unknown") -> Dataset:
    """A dataset of validated arrays, with their mean and standard deviation.

    Raises:
        UsageError: no samples, labels that do not match them, or labels out of range.
    """
    x, y = torch.from_numpy(np.ascontiguousarray(samples.x)), torch.from_numpy(samples.y.astype(np.int64))
    if len(x) == 0 or len(x) != len(y):
        raise UsageError(f"{name}: expected one label for each sample and at least one, got {len(y)} for {len(x)}")
    if int(y.min()) < 0 or int(y.max()) >= len(samples.classes):
        raise UsageError(
            f"{name}: expected labels from 0 to {len(samples.classes) - 1}, got {int(y.min())} to {int(y.max())}"
        )
    mean, std = _statistics(x)
    return Dataset(name, split, x, y, samples.classes, mean, std, licence, source)


def _statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    kind = kind_of(x.shape[1:], x.dtype == torch.int64)
    if kind in ("tokens", "values"):
        return (), ()
    axes = (0, 2, 3) if kind == "image" else (0, 1)
    total = squares = torch.zeros(x.shape[1] if kind == "image" else x.shape[2], dtype=torch.float64)
    for chunk in torch.split(x, _CHUNK):
        values = to_float(chunk).double()
        total, squares = total + values.sum(axes), squares + values.square().sum(axes)
    count = x.numel() // len(total)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    std[std < _CONSTANT] = 1.0  # a constant channel becomes zero
    return tuple(mean.tolist()), tuple(std.tolist())
