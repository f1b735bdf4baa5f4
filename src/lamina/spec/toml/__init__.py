"""lamina's workload files in TOML: a network with arbitrary connections, and how to run it."""

from lamina.spec.toml.reader import read_toml
from lamina.spec.toml.writer import write_toml

__all__ = ["read_toml", "write_toml"]
