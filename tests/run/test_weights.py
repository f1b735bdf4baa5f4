"""Weights from a file, which holds tensors and nothing else."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina import run


class Versioned(nn.Linear):
    """Needs its version, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version") != 2:
            raise ValueError(f"version should be 2 instead of {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[no-untyped-call]


def test_modules_get_their_own_version() -> None:
    first, second = (nn.Sequential(Versioned(2, 2), nn.BatchNorm1d(2)) for _ in range(2))
    run.load_weights(second, dict(first.state_dict()))
    assert torch.equal(first[0].weight, second[0].weight)


def test_other_tensors_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)"):
        run.load_weights(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)})
