"""Change the algorithm of a model's layers: one verb, `convert`, and one configuration for each method."""

from lamina.accelerate import deprecated
from lamina.accelerate.convert import convert
from lamina.accelerate.registry import CELLS, configuration

deprecated.install()

__all__ = ["CELLS", "configuration", "convert"]
