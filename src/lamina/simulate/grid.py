"""The grids of :mod:`lamina.spec.grid`, under their former name."""

from lamina.spec.grid import MAX_CONFIGURATIONS, Grid, parse_grid, read_grid, value_of

__all__ = ["MAX_CONFIGURATIONS", "Grid", "parse_grid", "read_grid", "value_of"]
