"""Weights from a file into a network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that were saved from this network; a file does not hold the versions of its modules.

    Some modules, such as those of torchvision's MNASNet, need them.

    Raises:
        RuntimeError: tensors are missing, unknown or of another shape.
    """
    state: OrderedDict[str, Tensor] = OrderedDict(tensors)
    state._metadata = network.state_dict()._metadata  # type: ignore[attr-defined]
    network.load_state_dict(state)
