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


class Keeps(nn.Linear):
    """Its state holds more than tensors, as neural operators and 8-bit layers of other packages have it."""

    made = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"made": self.made}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.made = state["made"]


def test_what_is_no_tensor_stays_as_the_network_has_it() -> None:
    first, second = Keeps(2, 2), Keeps(2, 2)
    second.made = 3
    assert run.saved_weights(first).keys() == {"weight", "bias"}
    run.load_weights(second, run.saved_weights(first))
    assert torch.equal(first.weight, second.weight) and second.made == 3


def test_other_tensors_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)"):
        run.load_weights(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)})
