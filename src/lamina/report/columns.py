"""The columns of a layer table, one definition for the terminal and the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lamina.record import LayerRun, Roofline
from lamina.record.comparison import AXES, Axis, value
from lamina.report import units

WHOLE = "step"
"""The phase of a row that timed the whole network at once."""


@dataclass(frozen=True)
class Entry:
    """A row with what was concluded about it: its roofline and its share of the step.

    ``members`` are the entries of the equal blocks that are folded into this one; none if it is a row of its own.
    """

    row: LayerRun
    roofline: Roofline | None = None
    share: float | None = None
    members: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Column:
    """``text`` is what is shown; ``key`` is what is sorted by, ``None`` last."""

    title: str
    text: Callable[[Entry], str]
    key: Callable[[Entry], float | str | None]
    numeric: bool = True


def entries(
    rows: Sequence[LayerRun], rooflines: Mapping[LayerRun, Roofline], shares: Mapping[LayerRun, float]
) -> list[Entry]:
    """Rows joined with the conclusions about them."""
    return [Entry(row, rooflines.get(row), shares.get(row)) for row in rows]


def layer_columns(
    rows: Sequence[LayerRun], reasons: bool = False, lines: Sequence[Entry] = ()
) -> tuple[Column, ...]:
    """The columns these rows need: an axis only where it varies, the error only where it was checked.

    ``executed`` is there if a row ran something else than its implementation; with ``reasons``, the reason too. The
    number of blocks and the time of each are there if any of the ``lines`` is folded.
    """
    columns = [_words("layer", lambda row: row.layer), _words("kind", lambda row: row.kind)]
    columns.append(_words("phase", lambda row: row.phase))
    columns += [_axis(axis) for axis in varying(rows)]
    if any(executed(row) for row in rows):
        columns.append(_words("executed", executed))
        if reasons:
            columns.append(_words("reason", lambda row: row.selection_reason))
    blocks = [COUNT, EACH] if any(line.members for line in lines) else []
    columns += [TIME, *blocks, QUARTILES, SHARE, GFLOPS, GBS, ROOF]
    if any(row.rel_error is not None for row in rows):
        columns.append(ERROR)
    if any(row.note for row in rows):
        columns.append(_words("note", lambda row: row.note))
    return tuple(columns)


def executed(row: LayerRun) -> str:
    """What ran, where it is not what was requested."""
    return row.executed_impl if row.executed_impl != row.impl else ""


def varying(rows: Sequence[LayerRun]) -> tuple[Axis, ...]:
    """Axes on which the rows do not all agree; the clock of whole steps may be another one than that of layers."""
    layers = [row for row in rows if row.phase != WHOLE]
    seen = {axis: {value(row, axis) for row in layers or rows} - {None} for axis in AXES}
    return tuple(axis for axis in AXES if len(seen[axis]) > 1)


def _words(title: str, get: Callable[[LayerRun], str]) -> Column:
    return Column(title, lambda entry: get(entry.row), lambda entry: get(entry.row), numeric=False)


def _axis(axis: Axis) -> Column:
    def key(entry: Entry) -> float | str | None:
        return entry.row.batch if axis == "batch" else value(entry.row, axis)

    return Column(axis, lambda entry: value(entry.row, axis) or "", key, numeric=axis == "batch")


def _number(title: str, get: Callable[[Entry], float | None], show: Callable[[float], str]) -> Column:
    def text(entry: Entry) -> str:
        number = get(entry)
        return "" if number is None else show(number)

    return Column(title, text, get)


def _time(entry: Entry) -> str:
    timing = entry.row.timing
    if timing is None:
        return entry.row.outcome
    by = " (wall)" if entry.row.phase == WHOLE and timing.clock == "wall" else ""
    return units.duration(timing.median_us) + by


def _each(entry: Entry) -> str:
    """Median time of a block's layer, with the range over the blocks."""
    times = _times(entry)
    return f"{units.duration(median(times))} ({units.durations(min(times), max(times))})" if times else ""


def _times(entry: Entry) -> list[float]:
    return [it.row.timing.median_us for it in entry.members if it.row.timing]


def _quartiles(entry: Entry) -> str:
    timing = entry.row.timing
    if entry.members:
        return ""
    return units.durations(timing.q1_us, timing.q3_us) if timing else ""


def _spread(entry: Entry) -> float | None:
    timing = entry.row.timing
    return timing.q3_us - timing.q1_us if timing else None


def _gflops(entry: Entry) -> str:
    """The rate; as a lower bound if the FLOPs of some layers are unknown."""
    if entry.row.gflops is None:
        return ""
    return f"{'>= ' if entry.row.uncounted else ''}{units.number(entry.row.gflops)}"


def _roof(entry: Entry) -> str:
    roofline = entry.roofline
    if roofline is None or (roofline.share is None and roofline.bound == "unknown"):
        return ""
    share = "" if roofline.share is None else units.percent(roofline.share)
    return f"{share} {roofline.bound}".strip()


TIME = Column("time", _time, lambda entry: entry.row.timing.median_us if entry.row.timing else None)
COUNT = Column(
    "blocks", lambda entry: str(len(entry.members) or ""), lambda entry: float(len(entry.members)) or None
)
EACH = Column("each (range)", _each, lambda entry: median(_times(entry)) if _times(entry) else None)
QUARTILES = Column("quartiles", _quartiles, _spread)
SHARE = _number("share", lambda entry: entry.share, units.percent)
GFLOPS = Column("GFLOP/s", _gflops, lambda entry: entry.row.gflops)
GBS = _number("GB/s", lambda entry: entry.row.gbs, units.number)
ROOF = Column("of roofline", _roof, lambda entry: entry.roofline.share if entry.roofline else None)
ERROR = _number("error", lambda entry: entry.row.rel_error, lambda error: f"{error:.1e}")
