"""What the compaction engine is made of, and the format of what it delivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from lamina.errors import Fault, SpecError
from lamina.simulate.hierarchy import Device
from lamina.simulate.hierarchy.config import LINE
from lamina.simulate.hierarchy.timing import ticks
from lamina.simulate.jobs import Options
from lamina.spec.faults import plain

Count = Annotated[int, Field(ge=1, le=2**20, strict=True)]
Cycles = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Search = Literal["accurate", "prudent", "hasty"]

LANES = 16
"""fp32 values of a line of memory."""
METADATA = 6
"""Bytes of a block's entry: column number, valid bits of the mask, valid mapping entries."""
ENTRY_BYTES = ((4096, 256), (2048, 128), (1024, 64), (0, 32))
"""Columns longer than the first have entries of so many bytes; exactly at a limit the smaller (not published)."""
MOST_NEEDED = 15
"""Lines that a mapping entry can ask for: one byte, four bits of which are the offset."""
MOST_ROWS = 2**16 - 1
"""Rows that 16-bit indices tell apart, one value kept for "none"."""


class Engine(Options):
    """The engine between L2 and memory. Sizes are the published ones (Dong 2020, table 6.4); times, ports, ways,
    and how far a search reads ahead are not published: settings, whose defaults are choices.

    ``compaction``, ``narrow`` and ``prefetch`` switch its parts: dropping zeros, fp16, reading ahead.
    """

    compaction: Annotated[bool, Field(strict=True)] = True
    narrow: Annotated[bool, Field(strict=True)] = True
    """Deliver fp16; otherwise fp32, with a 32-bit index where zeros are dropped."""
    prefetch: Annotated[bool, Field(strict=True)] = True
    search: Search = "accurate"
    """The best search allowed; where it finds no information, the next one is taken."""
    sib_kb: Count = 512
    sib_ways: Count = 16
    replacement: Literal["lru", "fifo"] = "lru"
    """Which column's entry makes room for another's."""
    window: Literal["sliding", "fixed"] = "sliding"
    """A full mapping drops its oldest entry, or takes no more."""
    buffer_kb: Count = 512
    units: Count = 32
    lanes: Annotated[int, Field(ge=1, le=LANES, strict=True)] = LANES
    prefetch_lines: Annotated[int, Field(ge=1, le=256, strict=True)] = 8
    """Lines of memory that a prudent or hasty search asks for at once."""
    ahead: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    """Compacted lines that an accurate search reads ahead; the published one reads none."""
    block: Literal[1, 2, 4, 8, 16] = 1
    """Neighbouring rows kept or dropped together, under one index."""
    searchers: Count = 16
    """Searches at a time, each column always by the same."""
    lookup_cycles: Cycles = 4.0
    step_cycles: Cycles = 1.0
    """A step of a search: over a mapping entry, to a bit, or the address of a line."""
    unit_cycles: Cycles = 4.0
    """A compaction unit's time for so many values as it has lanes."""
    buffer_cycles: Cycles = 2.0
    l2_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.5
    """Share of L2 given up for the engine's memory."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.entries_per_line < 1:
            raise ValueError(f"block = {self.block}: expected at most 8 fp32 values beside their index in a line")
        return self

    @classmethod
    def parse(cls, document: Mapping[str, Any], source: str = "--set") -> Self:
        """The settings a document describes.

        Raises:
            SpecError: every fault of the document.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise SpecError(source, [Fault(text) for _, text in plain(error, cls.model_fields)]) from None

    @property
    def entries_per_line(self) -> int:
        """Values of a delivered line.

        Compacted: a 16-bit index (32 bits beside fp32) for each block of values; else values alone.
        """
        value, index = (2, 2) if self.narrow else (4, 4)
        if not self.compaction:
            return LINE // value
        return LINE // (self.block * value + index) * self.block

    @property
    def sram_bytes(self) -> int:
        """Of information block and prefetch buffer."""
        return (self.sib_kb + self.buffer_kb) * 1024

    def remaining(self, device: Device) -> Device:
        """The device with the L2 that is left beside the engine.

        Raises:
            SpecError: what is left is no possible cache.
        """
        return device.changed({"l2.bytes": round(device.l2.bytes * (1 - self.l2_share))}, "l2_share")


class EntryFormat(NamedTuple):
    """One column's entry in the sparsity information block, in bytes: ``mapping`` is also how many it maps."""

    entry: int
    mask: int
    mapping: int


def entry_format(rows: int) -> EntryFormat:
    """The entry of columns of so many rows.

    Raises:
        SpecError: no index reaches the last row, or the mask leaves no byte for the mapping.
    """
    mask = -(-rows // (8 * LANES))
    entry = next(size for longer, size in ENTRY_BYTES if rows > longer or longer == 0)
    mapping = entry - METADATA - mask
    if not 1 <= rows <= MOST_ROWS or mapping < 1:
        most = (ENTRY_BYTES[0][1] - METADATA - 1) * 8 * LANES
        raise SpecError("compaction engine", f"columns of {rows} rows: expected 1 to {most}; split the product along k")
    return EntryFormat(entry, mask, mapping)


class EngineTiming(NamedTuple):
    """Every parameter of an engine for columns of one length, as whole numbers; times in ticks."""

    direct: int  # nothing is dropped: where a value lies needs no search
    prefetch: int
    search: int  # 0 hasty, 1 prudent, 2 accurate
    sets: int
    ways: int
    lru: int
    sliding: int
    mapping: int
    buffer_lines: int
    depth: int  # lines of a lane of the buffer
    spare: int  # compacted lines that one line of memory can end
    units: int
    per_line: int
    batch: int
    ahead: int
    searchers: int
    lookup: int
    step: int
    unit: int
    buffer: int


def engine_timing(engine: Engine, rows: int) -> EngineTiming:
    """The whole numbers of an engine for columns of so many rows.

    Raises:
        SpecError: the information block does not hold one set of entries.
    """
    form = entry_format(rows) if engine.compaction else EntryFormat(ENTRY_BYTES[-1][1], 0, 0)  # a tag, no profile
    sets = engine.sib_kb * 1024 // (form.entry * engine.sib_ways)
    if sets < 1:
        raise SpecError(
            "compaction engine",
            f"sib_kb = {engine.sib_kb}: expected at least one set of {engine.sib_ways} entries of {form.entry} bytes; "
            "raise sib_kb or lower sib_ways",
        )
    return EngineTiming(
        direct=int(not engine.compaction),
        prefetch=int(engine.prefetch),
        search=("hasty", "prudent", "accurate").index(engine.search),
        sets=sets,
        ways=engine.sib_ways,
        lru=int(engine.replacement == "lru"),
        sliding=int(engine.window == "sliding"),
        mapping=form.mapping,
        buffer_lines=engine.buffer_kb * 1024 // LINE,
        depth=(engine.prefetch_lines + 1) * LANES // engine.entries_per_line + engine.ahead + 3,
        spare=LANES // engine.entries_per_line + 1,
        units=engine.units,
        per_line=engine.entries_per_line,
        batch=engine.prefetch_lines,
        ahead=engine.ahead,
        searchers=engine.searchers,
        lookup=ticks(engine.lookup_cycles),
        step=ticks(engine.step_cycles),
        unit=max(1, ticks(engine.unit_cycles * -(-LANES // engine.lanes))),
        buffer=ticks(engine.buffer_cycles),
    )
