"""Validation against MGPUSim runs of the dense kernel: times, and counters that must be equal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from lamina.errors import Fault, SpecError, UsageError
from lamina.simulate.hierarchy.config import LINE, Device, preset
from lamina.simulate.hierarchy.gemm import TILE, gemm
from lamina.simulate.hierarchy.program import Program
from lamina.simulate.hierarchy.unit import Impl, Simulation, simulate

L1_READS = ("L1V.read-hit", "L1V.read-miss", "L1V.read-mshr-hit")
L1_WRITES = ("L1V.write-hit", "L1V.write-miss", "L1V.write-mshr-hit")
COUNTS = ("cus", "l2_kb", "K", "M", "N")
NUMBERS = (*COUNTS, "kt_us", "inst", *L1_READS, *L1_WRITES, "L2.read-miss", "L2TLB.miss")
MAX_VALUE = 2**24
SHOWN = 50
SHIPPED = "reference_runs.csv"
HOLD_OUT, FITTED, REPEAT = "hold-out", "fitted", "repeat"
ROLES = (HOLD_OUT, FITTED, REPEAT)
"""A fitted run informed a constant of the simulator; a repeat has the configuration of another run."""


@dataclass(frozen=True)
class Reference:
    """One MGPUSim run: its configuration, time and counters. ``line`` is its line in the file.

    ``role`` is one of ``ROLES``; only a hold-out tests the simulator's times.
    """

    line: int
    tag: str
    cus: int
    l2_kb: int
    dram: str
    k: int
    m: int
    n: int
    microseconds: float
    instructions: int
    l1_reads: int
    l1_writes: int
    page_walks: int
    dram_lines: int  # L2 read misses: MGPUSim's DRAM counter also includes host copies
    role: str = HOLD_OUT

    @property
    def device(self) -> Device:
        """``mi6`` with the compute units, L2 and memory of the run."""
        memory: dict[str, object] = {"dram.mode": "banked"}
        if self.dram != "hbm_model":
            memory = {"dram.mode": "ideal", "dram.latency": float(self.dram.removeprefix("ideal"))}
        settings = {"cu.count": self.cus, "l2.bytes": self.l2_kb * 1024, **memory}
        return preset("mi6").changed(settings, f"line {self.line}")

    @property
    def program(self) -> Program:
        return gemm(self.m, self.n, self.k, "shipped")

    @property
    def touched_lines(self) -> int:
        """Distinct lines read by the kernel: 32 rows of A, all of B, code and arguments."""
        return (TILE * self.k + self.k * self.n) // (LINE // 4) + len(self.program.image) + 1

    @property
    def fits_l2(self) -> bool:
        """Whether all lines read and written fit in L2."""
        return (self.touched_lines + self.m * self.n // (LINE // 4)) * LINE <= self.l2_kb * 1024


@dataclass(frozen=True)
class Identity:
    """A counter that must be equal, or, for DRAM lines beyond L2, at least the number of distinct lines."""

    name: str
    simulated: int
    reference: int
    exact: bool = True

    @property
    def held(self) -> bool:
        return self.simulated == self.reference if self.exact else self.simulated >= self.reference


@dataclass(frozen=True)
class Compared:
    """One run, simulated and reference. Times in microseconds; ``error`` is relative and signed."""

    reference: Reference
    simulated_us: float
    identities: tuple[Identity, ...]
    counters: Mapping[str, int]

    @property
    def reference_us(self) -> float:
        return self.reference.microseconds

    @property
    def error(self) -> float:
        return self.simulated_us / self.reference_us - 1

    @property
    def held(self) -> bool:
        return all(identity.held for identity in self.identities)


@dataclass(frozen=True)
class Validation:
    """All runs of a file; errors are relative and absolute-valued, of the time."""

    rows: tuple[Compared, ...]
    impl: Impl

    @property
    def mean_error(self) -> float:
        return _mean(abs(row.error) for row in self.rows) or 0.0

    @property
    def worst_error(self) -> float:
        return max(abs(row.error) for row in self.rows)

    @property
    def hold_out(self) -> tuple[Compared, ...]:
        """The runs that informed no constant, each configuration once."""
        return tuple(row for row in self.rows if row.reference.role == HOLD_OUT)

    @property
    def held(self) -> bool:
        return all(row.held for row in self.rows)

    def to_dict(self) -> dict[str, object]:
        """Plain values, serializable as JSON."""
        return {
            "impl": self.impl,
            "mean_error": self.mean_error,
            "worst_error": self.worst_error,
            "hold_out": len(self.hold_out),
            "hold_out_mean_error": _mean(abs(row.error) for row in self.hold_out),
            "hold_out_worst_error": max((abs(row.error) for row in self.hold_out), default=None),
            "identities_held": self.held,
            "rows": [
                {
                    **asdict(row.reference),
                    "simulated_us": row.simulated_us,
                    "reference_us": row.reference_us,
                    "error": row.error,
                    "identities": [{**asdict(one), "held": one.held} for one in row.identities],
                }
                for row in self.rows
            ],
        }


def shipped_reference() -> list[Reference]:
    """The 19 MGPUSim runs that lamina ships (akita 4.9, dense kernel)."""
    file = files("lamina.simulate.hierarchy") / SHIPPED
    return parse_reference(file.read_text(encoding="utf-8"), SHIPPED)


def read_reference(path: Path) -> list[Reference]:
    """The runs of a CSV file with MGPUSim's counters.

    Raises:
        UsageError: the file cannot be read; as SpecError, all its faults by line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SpecError(str(path), f"expected UTF-8 text, got byte 0x{error.object[error.start]:02x}") from None
    return parse_reference(text, str(path))


def parse_reference(text: str, source: str = "reference") -> list[Reference]:
    """The runs of a CSV text; other columns are ignored.

    Raises:
        SpecError: all faults by line.
    """
    faults: list[Fault] = []
    found: list[Reference] = []
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        known = (*NUMBERS, "dram")
        faults += [Fault(f"column {name!r} is missing", 1) for name in known if name not in header]
        faults += [Fault(f"column {name!r} is duplicated", 1) for name in known if header.count(name) > 1]
        for cells in reader if not faults else ():
            if not cells:
                continue
            if len(cells) != len(header):
                faults.append(Fault(f"expected {len(header)} cells, got {len(cells)}", reader.line_num))
                continue
            wrong, row = _row(dict(zip(header, cells, strict=True)), reader.line_num)
            faults += [Fault(message, reader.line_num) for message in wrong]
            found += [row] if row else []
    except csv.Error as error:
        faults.append(Fault(f"expected comma-separated values: {error}", reader.line_num))
    if not faults and not found:
        faults.append(Fault("expected at least one run below the header, got none"))
    if faults:
        more = len(faults) - SHOWN
        raise SpecError(source, [*faults[:SHOWN], *([Fault(f"and {more} more faults")] if more > 0 else [])])
    return found


def _row(cells: Mapping[str, str], line: int) -> tuple[list[str], Reference | None]:
    wrong: list[str] = []
    value = {name: _number(name, cells[name], wrong) for name in NUMBERS}
    for name in COUNTS:
        if not 1 <= value[name] <= MAX_VALUE:
            wrong.append(f"{name} = {cells[name]}: expected 1 to {MAX_VALUE}")
    wrong += [
        f"{name} = {cells[name]}: expected a multiple of {TILE}" for name in ("K", "M", "N") if value[name] % TILE
    ]
    if value["kt_us"] <= 0:
        wrong.append(f"kt_us = {cells['kt_us']}: expected more than 0")
    dram = cells["dram"].strip()
    if dram != "hbm_model" and not (dram.startswith("ideal") and dram.removeprefix("ideal").isdecimal()):
        wrong.append(f"dram = {dram!r}: expected 'hbm_model' or 'ideal' with its cycles, as in 'ideal100'")
    role = cells.get("role", HOLD_OUT).strip()
    if role not in ROLES:
        wrong.append(f"role = {role!r}: expected one of {', '.join(ROLES)}")
    if wrong:
        return wrong, None
    row = Reference(
        line=line,
        tag=cells.get("tag", ""),
        cus=int(value["cus"]),
        l2_kb=int(value["l2_kb"]),
        dram=dram,
        k=int(value["K"]),
        m=int(value["M"]),
        n=int(value["N"]),
        microseconds=value["kt_us"],
        instructions=int(value["inst"]),
        l1_reads=int(sum(value[name] for name in L1_READS)),
        l1_writes=int(sum(value[name] for name in L1_WRITES)),
        page_walks=int(value["L2TLB.miss"]),
        dram_lines=int(value["L2.read-miss"]),
        role=role,
    )
    try:
        device = row.device
    except SpecError as error:
        return [fault.message for fault in error.faults], None
    if 4 * (row.m * row.k + row.k * row.n + row.m * row.n) > device.dram.bytes:
        return [f"M, N, K = {row.m}, {row.n}, {row.k}: expected matrices that fit in {device.dram.bytes} bytes"], None
    return [], row


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _number(name: str, text: str, wrong: list[str]) -> float:
    """A number of a file; an integer unless it is a time. Faults are added to ``wrong``; the result is always valid."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    whole = name != "kt_us"
    if not math.isfinite(value) or value < 0 or (whole and value != int(value)):
        wrong.append(f"{name} = {text.strip()!r}: expected {'an integer' if whole else 'a number'} of at least 0")
        return TILE
    return value


def validate(
    rows: Sequence[Reference], impl: Impl = "core", progress: Callable[[float], None] | None = None
) -> Validation:
    """Simulate every run and compare. ``progress`` is called with the fraction of finished runs.

    Raises:
        UsageError: there are no runs, or one does not fit its device.
    """
    if not rows:
        raise UsageError("expected at least one run to compare with, got none")
    compared = []
    for done, row in enumerate(rows, 1):
        compared.append(compare(row, simulate(row.program, row.device, impl=impl)))
        if progress:
            progress(done / len(rows))
    return Validation(tuple(compared), impl)


def compare(row: Reference, run: Simulation) -> Compared:
    """Compare one run with its reference."""
    return Compared(row, run.microseconds, tuple(_identities(row, run.counters)), run.counters)


def _identities(row: Reference, counters: Mapping[str, int]) -> Iterable[Identity]:
    yield Identity("instructions", counters["instructions"], row.instructions)
    yield Identity("l1_reads", counters["l1_reads"], row.l1_reads)
    yield Identity("l1_writes", counters["l1_writes"], row.l1_writes)
    yield Identity("page_walks", counters["page_walks"], row.page_walks)
    if row.fits_l2:
        yield Identity("dram_lines", counters["dram_reads"], row.dram_lines)
    else:
        yield Identity("dram_lines", counters["dram_reads"], row.touched_lines, exact=False)
    yield Identity("l2_reads", counters["l2_reads"], counters["l1_misses"] + len(row.program.image))
