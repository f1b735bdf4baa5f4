"""The memory interface below L2, for both implementations; simulated units are inserted here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lamina.simulate.hierarchy.config import LINE, Device
from lamina.simulate.hierarchy.reference_memory import Below, Dram
from lamina.simulate.hierarchy.state import M_READS, M_ROW_HITS, M_WRITES, Table, memory
from lamina.simulate.hierarchy.timing import dram_timing_of

Compiled = Callable[[Table, int, int, int], int]
"""A compiled function (table, now, address, mark) -> tick; ``core.BELOW`` is its signature."""


class Memory(Protocol):
    """The level below L2, created for each run. A unit implements this and forwards to ``DramMemory``."""

    def reference(self) -> Below:
        """The plain Python implementation."""

    def compiled(self) -> tuple[Compiled, Table]:
        """The compiled function, and the table of its parameters, state and counters."""

    def counters(self, part: Below | Table) -> Mapping[str, int]:
        """The counters, from either implementation."""


@dataclass(frozen=True)
class DramMemory:
    """The device's DRAM without a unit in front."""

    device: Device

    def reference(self) -> Dram:
        return Dram(dram_timing_of(self.device))

    def compiled(self) -> tuple[Compiled, Table]:
        from lamina.simulate.hierarchy import core

        return core.dram, memory(dram_timing_of(self.device))

    def counters(self, part: Below | Table) -> dict[str, int]:
        if isinstance(part, Dram):
            reads, writes, hits = part.reads, part.writes, part.row_hits
        else:
            assert not hasattr(part, "read")
            reads, writes, hits = (int(part[i]) for i in (M_READS, M_WRITES, M_ROW_HITS))
        return {
            "dram_reads": reads,
            "dram_writes": writes,
            "dram_row_hits": hits,
            "dram_bytes": LINE * (reads + writes),
        }
