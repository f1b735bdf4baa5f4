"""Checkpoints hold every tensor under every name."""

import resource
from pathlib import Path

import pytest
import torch

from lamina.errors import LaminaError, UnsupportedError
from lamina.run.checkpoint import load, save


def test_tensors_that_share_memory_are_written_under_each_name(tmp_path: Path) -> None:
    weight = torch.randn(3, 4)
    tensors = {"embed": weight, "head": weight, "part": weight[1:], "other": torch.ones(2)}
    save(path := tmp_path / "state.safetensors", tensors, {"step": 3})
    found, facts = load(path)
    assert facts == {"step": 3} and found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_full_disk_keeps_the_former_checkpoint(tmp_path: Path) -> None:
    save(path := tmp_path / "state.safetensors", {"a": torch.ones(4)}, {"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(LaminaError, match="the checkpoint cannot be written .*too large.* the former one is kept"):
            save(path, {"a": torch.ones(4096)}, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load(path)[1] == {"step": 1} and list(tmp_path.iterdir()) == [path]


def test_a_sparse_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="edges: safetensors files hold strided tensors, got a sparse_coo one"):
        save(tmp_path / "state.safetensors", {"edges": torch.eye(3).to_sparse()}, {})
    assert not list(tmp_path.iterdir())
