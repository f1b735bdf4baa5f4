"""Change the algorithm of a model's layers: one verb, `convert`, and one configuration for each method."""

from lamina.accelerate.convert import CELLS, configuration, convert

__all__ = ["CELLS", "configuration", "convert"]
