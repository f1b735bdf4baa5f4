"""Parses the output of ``ncu --csv --page raw``: one line per profiled kernel.

The table is surrounded by ncu's own lines, which begin with ``==``, and by the output of the program. Values are
converted to base units (bytes, nanoseconds, hertz) if the table was printed without ``--print-units base``.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lamina.errors import Fault, SpecError
from lamina.spec.counters import LAUNCH

Triple = tuple[int, int, int]
Reading = tuple[float | None, str]
"""A value, or ``None``, and its unit."""

PASSES = "profiler__replayer_passes"
OWN = "lamina/"
"""Prefix of the ranges of lamina's own child process."""

_NAME, _GRID, _BLOCK = "Kernel Name", "Grid Size", "Block Size"
_START_STOP, _PUSH_POP = "Start/Stop_Range", "Push/Pop_Range"
_TRAILER = 6  # fields after the name of a range: payload, color and message, each with a type and a value
_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_NO_VALUE = {"", "n/a", "na", "nan", "-nan", "+nan", "inf", "-inf", "+inf", "none", "no data"}
_TRIPLE = re.compile(r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)")
_CLOSED = re.compile(r'[^,]"$')
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}
_SCALED = re.compile(r"([KMGT])(byte|hz)(/.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Profiled:
    """One profiled kernel. ``range`` is the name of the NVTX range of its launch, ``None`` outside of all ranges.

    ``metrics`` has an entry for every requested metric, with the value ``None`` if there is no column.
    """

    range: str | None
    name: str
    grid: Triple
    block: Triple
    metrics: Mapping[str, Reading]
    passes: int | None = None  # replay passes


@dataclass(frozen=True)
class Table:
    """The raw page as text; ``lines`` are the kernels with their line numbers."""

    source: str
    columns: tuple[str, ...]
    units: Mapping[str, str]
    lines: tuple[tuple[int, str], ...]
    banner: tuple[str, ...]  # ncu's own lines

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Cells of each kernel by column, with its line number. Errors: SpecError for a truncated line."""
        for at, line in self.lines:
            yield at, _row(self.source, self.columns, at, line)

    def reading(self, line: int, cells: Mapping[str, str], metric: str) -> Reading:
        """A metric of a kernel in base units. Errors: SpecError for text that is not a number."""
        if metric not in cells:
            return None, ""
        scale, unit = _base(self.units[metric])
        try:
            value = number(cells[metric])
        except ValueError as error:
            raise SpecError(self.source, [Fault(f"{metric}: {error}", line)]) from error
        return None if value is None else value * scale, unit

    def profiled(self, metrics: Iterable[str]) -> Iterator[Profiled]:
        """The kernels with these metrics and the occupancy limits. Errors: SpecError."""
        wanted = tuple(dict.fromkeys([*metrics, *(metric.name for metric in LAUNCH)]))
        for line, cells in self.rows():
            yield _profiled(self, line, cells, wanted)


def parse(text: str, metrics: Iterable[str], source: str = "ncu") -> tuple[Profiled, ...]:
    """The profiled kernels in launch order, with these metrics and the occupancy limits.

    Errors:
        SpecError: no raw page, a truncated line, or an invalid cell, with the line number.
    """
    return tuple(read(text, source).profiled(metrics))


def read(text: str, source: str = "ncu") -> Table:
    """Find the table in ncu's output. Errors: SpecError."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(('"ID",', "ID,"))), None)
    if start is None:
        errors = "; ".join(line for line in lines if line.startswith("==ERROR=="))
        raise SpecError(source, f"expected a table from 'ncu --csv --page raw', found none{errors and ': '}{errors}")
    columns = tuple(_cells(lines[start]))
    if "Metric Name" in columns or _NAME not in columns:
        fault = Fault("expected ncu's raw page, got another page: print it with 'ncu --csv --page raw'", start + 1)
        raise SpecError(source, [fault])
    body = [
        (at, line)
        for at, line in enumerate(lines[start + 1 :], start + 2)
        if line.strip() and not line.startswith("==")
    ]
    if not body:
        raise SpecError(source, [Fault("expected units below the columns, got the end of the file", start + 1)])
    units = _row(source, columns, *body[0])
    banner = tuple(line for line in lines if line.startswith("=="))
    return Table(source, columns, units, tuple(body[1:]), banner)


def number(text: str) -> float | None:
    """A number as ncu prints it, with thousands separators; ``None`` for its notations of a missing value.

    >>> number("1,692.37"), number("n/a"), number("(!) nan")
    (1692.37, None, None)

    Raises:
        ValueError: anything else.
    """
    bare = text.strip()
    if "(!)" in bare or bare.lower() in _NO_VALUE:
        return None
    if not _NUMBER.fullmatch(bare):
        raise ValueError(f"expected a number such as 1,234.5 or n/a, got {text[:40]!r}")
    value = float(bare.replace(",", ""))
    return value if math.isfinite(value) else None


def innermost(cells: Mapping[str, str]) -> str | None:
    """The range of a kernel: lamina's own if there is one, else the innermost of its thread."""
    started, pushed = (
        [name for column, cell in cells.items() if range_type in column for name in range_names(cell)]
        for range_type in (_START_STOP, _PUSH_POP)
    )
    own = [name for name in (*started, *pushed) if name.startswith(OWN)]
    return next(reversed(own or pushed or started), None)


def range_names(cell: str) -> tuple[str, ...]:
    """Range names in a cell, the outermost first.

    ncu writes ``"ID:DOMAIN:NAME:PL_TYPE:PL_VALUE:CLR_TYPE:COLOR:MSG_TYPE:MSG"``, each in quotes; the ranges of a
    thread follow its number. A name may contain colons and quotes.
    """
    text = cell.replace('""', '"')
    first, last = text.find('"'), text.rfind('"')
    if first == last:
        return ()
    named = (part.rsplit(":", _TRAILER)[0] for part in re.split(r'"\s+"', text[first + 1 : last]))
    return tuple(re.sub(r"^(\d+:)?[^:]*:", "", name) for name in named)


def _profiled(table: Table, line: int, cells: Mapping[str, str], wanted: Sequence[str]) -> Profiled:
    passes, _ = table.reading(line, cells, PASSES)
    return Profiled(
        range=innermost(cells),
        name=cells[_NAME],
        grid=_triple(table, line, cells, _GRID, "launch__grid_dim"),
        block=_triple(table, line, cells, _BLOCK, "launch__block_dim"),
        metrics={metric: table.reading(line, cells, metric) for metric in wanted},
        passes=None if passes is None else int(passes),
    )


def _triple(table: Table, line: int, cells: Mapping[str, str], column: str, dimensions: str) -> Triple:
    if match := _TRIPLE.fullmatch(cells.get(column, "").strip()):
        return int(match[1]), int(match[2]), int(match[3])
    x, y, z = (table.reading(line, cells, f"{dimensions}_{axis}")[0] for axis in "xyz")
    if column in cells or x is None or y is None or z is None:
        raise SpecError(table.source, [Fault(f"{column}: expected (x, y, z), got {cells.get(column)!r}", line)])
    return int(x), int(y), int(z)


def _row(source: str, columns: Sequence[str], at: int, line: str) -> dict[str, str]:
    cells = _cells(line)
    # ncu quotes every cell: a last cell without a closing quote is truncated.
    if len(cells) != len(columns) or (line.startswith('"') and not _CLOSED.search(line)):
        got = f"{len(cells)} of {len(columns)} columns"
        raise SpecError(source, [Fault(f"the line is truncated or not part of the table ({got}); export it again", at)])
    return dict(zip(columns, cells, strict=True))


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader((line,)), [])
    except csv.Error:
        return []


def _base(unit: str) -> tuple[float, str]:
    """The factor to the base unit, and that unit."""
    if unit in _TIMES:
        return _TIMES[unit], "ns"
    if match := _SCALED.fullmatch(unit):
        return 1e3 ** (1 + "KMGT".index(match[1].upper())), match[2].lower() + (match[3] or "")
    return 1.0, unit
