"""The engine as the level below L2, for both implementations of the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamina.simulate.compaction_engine.config import EngineTiming
from lamina.simulate.compaction_engine.counters import NAMES
from lamina.simulate.compaction_engine.reference import CompactionEngine, Region
from lamina.simulate.compaction_engine.state import HEADER, initial
from lamina.simulate.compaction_engine.stream import Layout
from lamina.simulate.hierarchy import Device, DramMemory
from lamina.simulate.hierarchy.memory import Compiled
from lamina.simulate.hierarchy.reference_memory import Below, Dram
from lamina.simulate.hierarchy.state import Table
from lamina.simulate.hierarchy.state import memory as dram_table
from lamina.simulate.hierarchy.timing import dram_timing_of


@dataclass(frozen=True)
class EngineMemory:
    """The device's memory behind an engine, with the zeros of one matrix."""

    device: Device
    timing: EngineTiming
    layout: Layout = field(repr=False)
    region: Region

    def reference(self) -> CompactionEngine:
        return CompactionEngine(self.timing, self.layout, self.region, Dram(dram_timing_of(self.device)))

    def compiled(self) -> tuple[Compiled, Table]:
        from lamina.simulate.compaction_engine import core

        table, _ = initial(self.timing, self.layout, self.region, dram_timing_of(self.device))
        return core.read, table

    def counters(self, part: Below | Table) -> dict[str, int]:
        below = DramMemory(self.device)
        if isinstance(part, CompactionEngine):
            return {**below.counters(part.dram), **part.counters}
        assert not hasattr(part, "read")
        first = len(dram_table(dram_timing_of(self.device))) + HEADER
        counted = zip(NAMES, (int(value) for value in part[first : first + len(NAMES)]), strict=True)
        return {**below.counters(part), **dict(counted)}
