"""Training by several processes: one record, one checkpoint, the same weights everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.cli.conftest import Lamina

from lamina.store import open_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    arrays = {f"x_{split}": generator.integers(0, 255, (48, 28, 28)).astype(np.uint8) for split in ("train", "test")}
    path = tmp_path / "noise.npz"
    np.savez(path, **arrays, **{f"y_{split}": np.arange(48, dtype=np.uint8) % 3 for split in ("train", "test")})
    return path


def test_two_processes_train_as_one(tmp_path: Path, data: Path, lamina: Lamina) -> None:
    words = ["train", "lenet5", "--data", str(data), "--epochs", "2", "-b", "16", "--device", "cpu"]
    one, two = ([*words, "--checkpoint", str(tmp_path / f"{count}.safetensors")] for count in (1, 2))
    result = lamina(*one)
    assert result.exit_code == 0, result.output
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "lamina"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *two], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    alone, together = (load_file(tmp_path / f"{count}.safetensors") for count in (1, 2))
    assert alone.keys() == together.keys()
    for name, weight in alone.items():
        # Each step sees the same samples, its gradient summed in another order.
        assert abs(weight - together[name]).max() <= 1e-3 * max(weight.abs().max().item(), 1e-3), name
    with open_store(tmp_path / "lamina.db") as store:
        runs = store.runs()
        assert [run.status for run in runs] == ["done", "done"]
        first, second = (store.epochs(run.id) for run in runs)
        assert [epoch.step for epoch in first] == [epoch.step for epoch in second] == [3, 6]
