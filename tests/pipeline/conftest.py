"""What most tests of the pipeline start with: an empty store, and data that a small network can learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lamina.store import Store, open_store


@pytest.fixture(autouse=True)
def always(few_repetitions: None) -> None:
    """No test is about how often a whole step is timed."""


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with open_store(store_path) as database:
        yield database


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A hundred pictures whose class is where their bright half is."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        y = generator.integers(0, 2, 100)
        x = generator.integers(0, 120, (100, 28, 28))
        x[y == 1, :14] += 100
        x[y == 0, 14:] += 100
        arrays |= {f"x_{split}": x.astype(np.uint8), f"y_{split}": y.astype(np.uint8)}
    path = tmp_path_factory.mktemp("data") / "halves.npz"
    np.savez(path, **arrays)
    return str(path)
