"""lamina's own workload files: a network with any wiring, and how to run it, in TOML."""

from lamina.spec.toml.reader import read_toml
from lamina.spec.toml.writer import write_toml

__all__ = ["read_toml", "write_toml"]
