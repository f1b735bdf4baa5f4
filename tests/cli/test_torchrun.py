"""Training by several processes: one record, one checkpoint, the same weights everywhere."""

import os
import re
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


DENSE_BYTES = 4 * 61_111
"""Gradients of LeNet-5 with three classes."""


def test_two_processes_train_as_one(tmp_path: Path, data: Path, lamina: Lamina) -> None:
    words = ["train", "lenet5", "--data", str(data), "--epochs", "2", "-b", "16", "--device", "cpu"]
    words += ["--impl", "circulant[block_size=4]"]
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
        second, first = sorted(store.runs(), key=lambda run: "all-reduce" not in " ".join(run.remarks))
        assert first.status == second.status == "done"
        for left, right in zip(store.epochs(first.id), store.epochs(second.id), strict=True):
            assert left.step == right.step
            assert [left.train_loss, left.test_loss] == pytest.approx([right.train_loss, right.test_loss], rel=1e-4)
            assert left.test_accuracy == right.test_accuracy
        assert right.step == 6
    assert not any("all-reduce" in note for note in first.remarks)
    exchanged = [note for note in second.remarks if "all-reduce" in note]
    pattern = r"epoch (\d): all-reduce of ([\d,]+) bytes of gradients in each of 3 steps, in (\S+) s"
    for index, note in enumerate(exchanged):
        found = re.fullmatch(pattern, note)
        assert found and int(found[1]) == index, note
        assert 3.5 < DENSE_BYTES / int(found[2].replace(",", "")) < 4  # the first convolution stays dense
        assert 0 < float(found[3]) < 10
    assert len(exchanged) == 2
    shown = lamina("runs", "show", second.id).stdout
    assert exchanged[1] in " ".join(shown.split())


def test_fsdp_is_refused_where_it_cannot_run(lamina: Lamina, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", "lenet5", "--data", str(data), "--device", "cpu", "--parallel"]
    alone = lamina(*words, "fsdp")
    assert alone.exit_code == 2 and "start them with torchrun" in alone.output
    assert lamina(*words, "tensor").exit_code == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    scaled = lamina(*words, "fsdp", "--precision", "fp16")
    assert scaled.exit_code == 2 and "expected --precision fp32, tf32 or bf16" in scaled.output
