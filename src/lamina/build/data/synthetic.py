"""Random data of any shape, for measurements without a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lamina.build.data.dataset import Dataset, kind_of
from lamina.errors import UsageError


def synthetic(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    items: int = 512,
    seed: int = 0,
    split: str = "train",
    indices: bool | None = None,
) -> Dataset:
    """``items`` random samples: normally distributed values, or indices below ``classes``.

    The same arguments give the same data; splits differ. ``indices``: by default for samples (T,).

    Raises:
        UsageError: an invalid shape, or fewer than one class or item.
    """
    kind = kind_of(shape, indices)
    if classes < 1 or items < 1:
        raise UsageError(f"expected at least one class and one item, got {classes} and {items}")
    rng = np.random.default_rng((seed, *split.encode()))
    if kind == "tokens":
        stream = torch.from_numpy(rng.integers(classes, size=(items, shape[0] + 1)))
        x, y = stream[:, :-1].contiguous(), stream[:, 1:].contiguous()
        parameters = 0
    else:
        x = torch.from_numpy(rng.standard_normal((items, *shape), dtype=np.float32))
        y = torch.from_numpy(rng.integers(classes, size=items))
        parameters = {"image": shape[0], "frames": shape[-1]}.get(kind, 0)
    return Dataset(
        "synthetic",
        split,
        x,
        y,
        tuple(map(str, range(classes))),
        mean=(0.0,) * parameters,
        std=(1.0,) * parameters,
        licence="none: random numbers",
        source=f"numpy default_rng, seed {seed}",
    )
