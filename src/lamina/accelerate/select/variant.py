"""A layer computed by another implementation, on the same parameters."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn


def variant(layer: nn.Module, **attributes: Any) -> nn.Module:
    """A shallow copy of a layer with other attributes, such as ``impl``; it shares parameters and buffers."""
    twin = copy.copy(layer)
    for name, value in attributes.items():
        setattr(twin, name, value)
    return twin
