"""Change the algorithm of a model's layers: one verb, `convert`, and one configuration for each method."""

from typing import TYPE_CHECKING

from lamina.accelerate import deprecated
from lamina.accelerate.registry import CELLS, configuration
from lamina.lazy import lazy

if TYPE_CHECKING:
    from lamina.accelerate.convert import convert
    from lamina.accelerate.tune import tune

__all__ = ["CELLS", "configuration", "convert", "tune"]

deprecated.install()
lazy(  # so that reading the registry needs no PyTorch
    __name__, {"convert": "lamina.accelerate.convert:convert", "tune": "lamina.accelerate.tune:tune"}
)
