"""Change the algorithm of a model's layers: one verb, `convert`, and one configuration for each method."""

from typing import TYPE_CHECKING

from lamina.accelerate import deprecated
from lamina.accelerate.registry import CELLS, configuration
from lamina.lazy import lazy

if TYPE_CHECKING:
    from lamina.accelerate.convert import convert

__all__ = ["CELLS", "configuration", "convert"]

deprecated.install()
lazy(__name__, {"convert": "lamina.accelerate.convert:convert"})  # so that reading the registry needs no PyTorch
