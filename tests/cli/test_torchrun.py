"""Training by several processes: one record, one checkpoint, the same weights everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from lamina.store import open_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    arrays = {f"x_{split}": generator.integers(0, 255, (48, 28, 28)).astype(np.uint8) for split in ("train", "test")}
    path = tmp_path / "noise.npz"
    np.savez(path, **arrays, **{f"y_{split}": np.arange(48, dtype=np.uint8) % 3 for split in ("train", "test")})
    return path


def test_two_processes_train_as_one(tmp_path: Path, data: Path) -> None:
    def train(processes: int, checkpoint: str) -> Path:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        words = ["train", "lenet5", "--data", str(data), "--epochs", "2", "-b", "16", "--device", "cpu"]
        path = tmp_path / checkpoint
        command = [*launch, "-m", "lamina", *words, "--checkpoint", str(path), "--store", str(tmp_path / "lamina.db")]
        done = subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return path

    alone, together = (load_file(train(n, f"{n}.safetensors")) for n in (1, 2))
    assert alone.keys() == together.keys()
    for name, weight in alone.items():
        # Each step sees the same samples, its gradient summed in another order.
        assert abs(weight - together[name]).max() <= 1e-3 * max(weight.abs().max().item(), 1e-3), name
    with open_store(tmp_path / "lamina.db") as store:
        runs = store.runs()
        assert [run.status for run in runs] == ["done", "done"]
        first, second = (store.epochs(run.id) for run in runs)
        assert [epoch.step for epoch in first] == [epoch.step for epoch in second] == [3, 6]
