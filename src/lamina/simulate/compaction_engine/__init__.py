"""The compaction engine: a unit between L2 and DRAM that removes the zeros of a matrix on its way to L2."""

from lamina.simulate.compaction_engine.config import Engine, entry_format
from lamina.simulate.compaction_engine.stream import Stream, decode, encode

__all__ = ["Engine", "Stream", "decode", "encode", "entry_format"]
