"""Data of a few random images."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.integers(0, 256, (32, 28, 28), dtype=np.uint8) for split in ("train", "test")}
    arrays |= {f"y_{split}": np.arange(32) % 10 for split in ("train", "test")}
    np.savez(tmp_path / "tiny.npz", **arrays)
    return str(tmp_path / "tiny.npz")
