"""Cost model of on-chip fission: fewer loads from shared memory against the instructions of conversion.

A multiprocessor issues one instruction of a warp each cycle in each of its quarters, whatever the instruction does, so
conversions take the slots of products wherever shared memory is not what binds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from lamina.accelerate.common.tiling import MULTIPROCESSORS
from lamina.accelerate.papers.on_chip_fission.config import OnChip, Tile
from lamina.accelerate.papers.on_chip_fission.simt import DEPTH, LANES, RESIDENT, plan, values


@dataclass(frozen=True)
class Instructions:
    """Instructions of one thread for one element of K, by execution unit.

    ``fma`` products, ``half`` conversions from half precision, ``alu`` shifts and masks, ``shared`` reads and writes
    of shared memory, ``other`` reads of device memory, addresses and loops.
    """

    fma: float
    half: float
    alu: float
    shared: float
    other: float

    @property
    def issued(self) -> float:
        """Their sum."""
        return self.fma + self.half + self.alu + self.shared + self.other


@dataclass(frozen=True)
class Machine:
    """A GPU: warp instructions per cycle of a multiprocessor, and bandwidths.

    ``wavefronts`` is what a read or write of shared memory takes of its unit, and ``reached`` the share of the
    tightest unit that a kernel of this kind keeps busy.
    """

    multiprocessors: int = MULTIPROCESSORS
    clock_ghz: float = 1.98
    issue: float = 4.0
    fma: float = 4.0
    half: float = 4.0
    alu: float = 2.0
    shared: float = 1.0
    wavefronts: float = 2.0
    read_gbs: float = 4000.0
    reached: float = 0.75


_PACKING = {"float": 0.0, "half": 0.5, "deft16": 0.5, "deft16q": 0.5}
"""Instructions that pack a value; 8-bit values are rounded and saturated with integer instructions."""
_PACKING_NARROW = 11.0
_STAGING = 5.5
"""Further instructions for each value that a thread stages: addresses, bounds, zeros."""
_TABLE = 6.0
"""Additional ones with an offset table."""


def instructions(tile: Tile, format: OnChip, windows: bool = False) -> Instructions:
    """Instructions of a thread for one element of K; ``windows`` for a convolution."""
    packed, read = values(format), 2 * tile
    staged = 2 * LANES * tile / (LANES * LANES)
    narrow = packed == 4
    taking_apart = {"deft16": 1.0, "deft16q": 0.5}.get(format, 2.75 if narrow else 0.0)
    packing = staged * _PACKING.get(format, _PACKING_NARROW)
    return Instructions(
        fma=tile * tile + (tile if narrow else 0),
        half=read if format == "half" else 0.0,
        alu=read * taking_apart + packing,
        shared=((2 if tile == 4 else 4) + staged) / packed,
        other=staged * (0.25 + _STAGING + (_TABLE / 2 if windows else 0.0)),
    )


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a product, and the limiting unit."""

    us: float
    limit: str


def predict(
    outputs: int,
    rows: int,
    depth: int,
    tile: Tile,
    format: OnChip,
    machine: Machine | None = None,
    windows: bool = False,
) -> Prediction:
    """A product of ``rows x depth`` by ``depth x outputs``: waves of blocks, each limited by its busiest unit."""
    machine = machine or Machine()
    each, at = instructions(tile, format, windows), plan(outputs, rows, depth, tile)
    cycles = {
        "issue": each.issued / machine.issue,
        "fma": each.fma / machine.fma,
        "half": each.half / machine.half,
        "alu": each.alu / machine.alu,
        "shared": each.shared * machine.wavefronts / machine.shared,
    }
    limit = max(cycles, key=lambda unit: cycles[unit])
    blocks = at.grid[0] * at.grid[1] * at.grid[2]
    warps = LANES * LANES / 32
    per_block = warps * ceil(at.k_per_split / DEPTH) * DEPTH * cycles[limit] / machine.reached
    whole, rest = divmod(blocks, machine.multiprocessors * RESIDENT[tile])
    # A last round that does not fill every place takes as long as the fullest multiprocessor.
    rounds = whole * RESIDENT[tile] + ceil(rest / machine.multiprocessors)
    computing = rounds * per_block / machine.clock_ghz / 1e3
    results = rows * outputs * (1 if at.splits == 1 else 2 * at.splits + 1)
    moving = 4 * (outputs * depth + rows * outputs) / machine.read_gbs / 1e3
    adding = 0.0 if at.splits == 1 else 4 * results / machine.read_gbs / 1e3
    return Prediction(max(computing, moving) + adding, limit if computing >= moving else "memory")
