"""Long tables made short: rows of equal blocks become one line, and the slowest lines are shown."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from lamina.record import LayerRun, Roofline, Timing
from lamina.record.comparison import AXES, value
from lamina.report.columns import WHOLE, Entry

LONG = 100
"""Rows from which a table is shortened."""
SLOWEST = 20
"""Phases in a short table, each in every setting."""


@dataclass(frozen=True)
class Short:
    """The lines of a short table, slowest first, and the number of rows that are folded into them and hidden."""

    lines: tuple[Entry, ...]
    folded: int
    hidden: int


def shorten(entries: Sequence[Entry], most: int = SLOWEST) -> Short:
    """The ``most`` slowest phases, equal blocks folded; the row of the whole step is always shown, last."""
    lines = fold(entries)
    times: dict[tuple[str, str], float] = {}
    for line in lines:
        phase = (line.row.layer, line.row.phase)
        times[phase] = max(times.get(phase, 0.0), line.row.timing.median_us if line.row.timing else 0.0)
    steps = [line for line in lines if line.row.phase == WHOLE]
    ranked = sorted((phase for phase in times if phase[1] != WHOLE), key=lambda phase: -times[phase])[:most]
    order = {phase: place for place, phase in enumerate(ranked)}
    kept = [line for line in lines if (line.row.layer, line.row.phase) in order]
    kept.sort(key=lambda line: order[line.row.layer, line.row.phase])
    shown = (*kept, *steps)
    covered = sum(max(len(line.members), 1) for line in shown)
    return Short(shown, sum(len(line.members) for line in shown), len(entries) - covered)


def fold(entries: Sequence[Entry]) -> list[Entry]:
    """One entry for the same layer of equal blocks: ``blocks.0-5.norm`` for ``blocks.0.norm`` to ``blocks.5.norm``.

    Blocks are equal if they are numbered one after another and have the same layers with the same shapes, phases,
    settings and outcomes. The time, FLOPs and bytes of a folded entry are sums, its error is the largest.
    """
    names = folded_names([entry.row for entry in entries])
    groups: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        name = names[entry.row.layer]
        of = entry.row.layer if name == entry.row.layer else ""
        groups.setdefault((name, of, entry.row.phase, _setting(entry.row), entry.row.reason), []).append(entry)
    return [
        members[0] if len(members) == 1 else _together(names[members[0].row.layer], members)
        for members in groups.values()
    ]


def folded_names(rows: Sequence[LayerRun]) -> dict[str, str]:
    """Each layer's name with the numbers of the equal blocks that it stands for, outermost blocks first."""
    layers: dict[str, set[Hashable]] = {}
    for row in rows:
        layers.setdefault(row.layer, set()).add((row.phase, row.kind, row.inputs, row.output, _setting(row)))
    names = {layer: tuple(layer.split(".")) for layer in layers}
    for depth in range(max(map(len, names.values()), default=0)):
        blocks: dict[tuple[str, ...], dict[int, set[Hashable]]] = {}
        for layer, name in names.items():
            if len(name) > depth and name[depth].isdecimal():
                block = blocks.setdefault(name[:depth], {}).setdefault(int(name[depth]), set())
                block.add((name[depth + 1 :], frozenset(layers[layer])))
        ranges = {
            (path, str(number)): f"{first}-{last}"
            for path, numbered in blocks.items()
            for first, last in _runs(numbered)
            for number in range(first, last + 1)
        }
        names = {
            layer: (*name[:depth], ranges.get((name[:depth], name[depth]), name[depth]), *name[depth + 1 :])
            if len(name) > depth
            else name
            for layer, name in names.items()
        }
    return {layer: ".".join(name) for layer, name in names.items()}


def _runs(blocks: dict[int, set[Hashable]]) -> Iterator[tuple[int, int]]:
    """First and last number of each run of two or more equal blocks."""
    for number in sorted(blocks):
        if blocks.get(number - 1) != blocks[number]:
            last = number
            while blocks.get(last + 1) == blocks[number]:
                last += 1
            if last > number:
                yield number, last


def _setting(row: LayerRun) -> Hashable:
    return (*(value(row, axis) for axis in AXES), row.executed_impl, row.outcome)


def together(timings: Sequence[Timing]) -> Timing:
    """The time of several calls, one after another: sums of their medians and quartiles."""
    return replace(
        timings[0],
        median_us=sum(it.median_us for it in timings),
        q1_us=sum(it.q1_us for it in timings),
        q3_us=sum(it.q3_us for it in timings),
        n=min(it.n for it in timings),
        kernels=_sum([it.kernels for it in timings]),
    )


def _together(name: str, members: Sequence[Entry]) -> Entry:
    """One entry for the rows of one layer of equal blocks."""
    rows = [entry.row for entry in members]
    timings = [row.timing for row in rows if row.timing]
    timing = together(timings) if timings else None
    errors = [row.rel_error for row in rows if row.rel_error is not None]
    row = replace(
        rows[0],
        layer=name,
        timing=timing,
        flops=_sum([row.flops for row in rows]),
        bytes=_sum([row.bytes for row in rows]),
        parameters=sum(row.parameters for row in rows),
        rel_error=max(errors, default=None),
        note=next((row.note for row in rows if row.note), ""),
    )
    shares = [entry.share for entry in members if entry.share is not None]
    return Entry(row, _roofline(members), sum(shares) if shares else None, tuple(members))


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _roofline(members: Sequence[Entry]) -> Roofline | None:
    """The roofline of rows of equal shape: the achieved part is weighted by time."""
    known = [
        (entry.roofline, entry.row.timing.median_us)
        for entry in members
        if entry.roofline and entry.roofline.share is not None and entry.row.timing
    ]
    total = sum(us for _, us in known)
    if len(known) < len(members) or not total:
        return members[0].roofline
    bounds = [roofline.bound for roofline, _ in known]
    share = sum((roofline.share or 0.0) * us for roofline, us in known) / total
    return replace(known[0][0], share=share, bound=max(bounds, key=bounds.count))

