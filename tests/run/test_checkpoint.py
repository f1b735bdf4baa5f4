"""Checkpoints hold every tensor under every name."""

from pathlib import Path

import torch

from lamina.run.checkpoint import load, save


def test_tensors_that_share_memory_are_written_under_each_name(tmp_path: Path) -> None:
    weight = torch.randn(3, 4)
    tensors = {"embed": weight, "head": weight, "part": weight[1:], "other": torch.ones(2)}
    save(path := tmp_path / "state.safetensors", tensors, {"step": 3})
    found, facts = load(path)
    assert facts == {"step": 3} and found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
