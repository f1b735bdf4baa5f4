"""Configuration of the compaction engine, and the format of its output."""

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

VALUES_PER_LINE = 16
"""fp32 values per cache line."""
METADATA = 6
"""Bytes of metadata per entry: column number, valid bits of the mask, valid mapping entries."""
ENTRY_BYTES = ((4096, 256), (2048, 128), (1024, 64), (0, 32))
"""Entry sizes in bytes by column length; at a limit the smaller size applies (not published)."""
MOST_NEEDED = 15
"""Maximum number of lines per mapping entry: one byte, four bits of which are the offset."""
MOST_ROWS = 2**16 - 1
"""Maximum number of rows of 16-bit indices, with one value reserved for "none"."""


class Engine(Options):
    """The engine between L2 and memory. Sizes are as published (Dong 2020, table 6.4). Latencies, ports, ways and the
    prefetch distance of searches are not published; their defaults are our choice.

    ``compaction``, ``narrow`` and ``prefetch`` enable its parts: zero removal, fp16, prefetching.
    """

    compaction: Annotated[bool, Field(strict=True)] = True
    narrow: Annotated[bool, Field(strict=True)] = True
    """Deliver fp16; otherwise fp32, with a 32-bit index if zeros are removed."""
    prefetch: Annotated[bool, Field(strict=True)] = True
    search: Search = "accurate"
    """The best permitted search; without the information that it needs, the next one is used."""
    sib_kb: Count = 512
    sib_ways: Count = 16
    replacement: Literal["lru", "fifo"] = "lru"
    """Replacement policy of entries."""
    window: Literal["sliding", "fixed"] = "sliding"
    """Whether a full mapping drops its oldest entry or accepts no more."""
    buffer_kb: Count = 512
    units: Count = 32
    lanes: Annotated[int, Field(ge=1, le=VALUES_PER_LINE, strict=True)] = VALUES_PER_LINE
    prefetch_lines: Annotated[int, Field(ge=1, le=256, strict=True)] = 8
    """Lines of memory that a prudent or hasty search requests at once."""
    ahead: Annotated[int, Field(ge=0, le=64, strict=True)] = 0
    """Compacted lines that an accurate search prefetches; 0 in the paper."""
    block: Literal[1, 2, 4, 8, 16] = 1
    """Adjacent rows that are kept or dropped together, with one index."""
    searchers: Count = 16
    """Number of search units; a column always uses the same one."""
    lookup_cycles: Cycles = 4.0
    step_cycles: Cycles = 1.0
    """Cycles per search step: a mapping entry, a bit, or the address of a line."""
    unit_cycles: Cycles = 4.0
    """Cycles of a compaction unit for as many values as it has lanes."""
    buffer_cycles: Cycles = 2.0
    l2_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.5
    """Fraction of L2 used for the engine's memory."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.entries_per_line < 1:
            raise ValueError(f"block = {self.block}: expected at most 8 fp32 values and their index in a line")
        return self

    @classmethod
    def parse(cls, document: Mapping[str, Any], source: str = "--set") -> Self:
        """The settings of a document.

        Raises:
            SpecError: all faults of the document.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise SpecError(source, [Fault(text) for _, text in plain(error, cls.model_fields)]) from None

    @property
    def entries_per_line(self) -> int:
        """Values per delivered line.

        With compaction, each block of values has a 16-bit index (32 bits with fp32); otherwise there are only values.
        """
        value, index = (2, 2) if self.narrow else (4, 4)
        if not self.compaction:
            return LINE // value
        return LINE // (self.block * value + index) * self.block

    @property
    def sram_bytes(self) -> int:
        """Bytes of the information block and the prefetch buffer."""
        return (self.sib_kb + self.buffer_kb) * 1024

    def remaining(self, device: Device) -> Device:
        """The device with the L2 that remains with the engine.

        Raises:
            SpecError: the rest is not a valid cache size.
        """
        return device.changed({"l2.bytes": round(device.l2.bytes * (1 - self.l2_share))}, "l2_share")


class EntryFormat(NamedTuple):
    """Entry of a column in the sparsity information block, in bytes; ``mapping`` is also its number of mappings."""

    entry: int
    mask: int
    mapping: int


def entry_format(rows: int) -> EntryFormat:
    """The entry format of columns with the given number of rows.

    Raises:
        SpecError: the index is too small for the last row, or the mask leaves no byte for the mapping.
    """
    mask = -(-rows // (8 * VALUES_PER_LINE))
    entry = next(size for longer, size in ENTRY_BYTES if rows > longer or longer == 0)
    mapping = entry - METADATA - mask
    if not 1 <= rows <= MOST_ROWS or mapping < 1:
        most = (ENTRY_BYTES[0][1] - METADATA - 1) * 8 * VALUES_PER_LINE
        raise SpecError("compaction engine", f"columns of {rows} rows: expected 1 to {most}; split the product along k")
    return EntryFormat(entry, mask, mapping)


class EngineTiming(NamedTuple):
    """All parameters of an engine for columns of one length, as integers; times in ticks."""

    direct: int  # no compaction: positions of values need no search
    prefetch: int
    search: int  # 0 hasty, 1 prudent, 2 accurate
    sets: int
    ways: int
    lru: int
    sliding: int
    mapping: int
    buffer_lines: int
    depth: int  # lines per lane of the buffer
    spare: int  # compacted lines that can end in one line of memory
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
    """The integer parameters of an engine for columns with the given number of rows.

    Raises:
        SpecError: the information block is smaller than one set of entries.
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
        depth=(engine.prefetch_lines + 1) * VALUES_PER_LINE // engine.entries_per_line + engine.ahead + 3,
        spare=VALUES_PER_LINE // engine.entries_per_line + 1,
        units=engine.units,
        per_line=engine.entries_per_line,
        batch=engine.prefetch_lines,
        ahead=engine.ahead,
        searchers=engine.searchers,
        lookup=ticks(engine.lookup_cycles),
        step=ticks(engine.step_cycles),
        unit=max(1, ticks(engine.unit_cycles * -(-VALUES_PER_LINE // engine.lanes))),
        buffer=ticks(engine.buffer_cycles),
    )
