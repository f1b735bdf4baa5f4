"""The tensors of a network that a file of weights holds, and their way back into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def saved_weights(network: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network's state, by name; what else modules keep there (`get_extra_state`) is left out."""
    return {name: value for name, value in network.state_dict().items() if isinstance(value, Tensor)}


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the `saved_weights` of this network; a file holds neither the versions of its modules nor other objects.

    Some modules, such as those of torchvision's MNASNet, need their version.

    Raises:
        RuntimeError: tensors are missing, unknown or of another shape.
    """
    own: Mapping[str, Any] = network.state_dict()
    rest = {name: value for name, value in own.items() if not isinstance(value, Tensor)}
    state: OrderedDict[str, Any] = OrderedDict(rest | dict(tensors))
    state._metadata = own._metadata  # type: ignore[attr-defined]
    network.load_state_dict(state)
