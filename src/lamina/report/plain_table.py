"""Laying out a terminal table. Every cell is plain text: a layer called ``[bold]`` stays that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lamina.record.wording import listed
from lamina.report import units

GAP = 3
"""Blanks and rule that a column adds to its text."""
NAMED = 6
"""Rows that a reason below the table names; the others are counted."""


@dataclass(frozen=True)
class Line:
    """One row of a table and how it looks."""

    cells: Sequence[str]
    style: str | None = None


def plain_table(
    headings: Sequence[str],
    lines: Sequence[Line],
    *,
    numeric: Iterable[str] = (),
    title: str | None = None,
    caption: Sequence[str] = (),
    footer: Sequence[str] | None = None,
    width: int | None = None,
    dispensable: Sequence[str] = (),
    wrapped: str | None = None,
) -> Table:
    """A table of text. With a ``width``, ``dispensable`` columns are left out, first ones first, until it fits.

    Only the ``wrapped`` column breaks its lines; the others are cut with an ellipsis if the terminal is
    narrower.
    """
    kept = _kept(headings, [*(line.cells for line in lines), *([footer] if footer else [])], width, dispensable)
    table = Table(
        title=Text(title) if title else None,
        caption=Text(units.sentence("\n".join(caption))) if caption else None,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        show_footer=footer is not None,
    )
    for place in kept:
        heading = headings[place]
        table.add_column(
            Text(heading),
            Text(footer[place]) if footer else "",
            justify="right" if heading in numeric else "left",
            no_wrap=heading != wrapped,
        )
    for line in lines:
        table.add_row(*(Text(units.sentence(line.cells[place])) for place in kept), style=line.style)
    return table


def _kept(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, dispensable: Sequence[str]
) -> list[int]:
    """Places of the columns that fit: all of them, less the dispensable ones as far as needed."""
    kept = list(range(len(headings)))
    needs = [max(map(cell_len, column)) + GAP for column in zip(headings, *rows, strict=True)]
    for heading in dispensable:
        if width is None or sum(needs[place] for place in kept) - 1 <= width:
            break
        kept = [place for place in kept if headings[place] != heading]
    return kept


def reasons(named: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each reason, with everything it is the reason for, each once."""
    groups: dict[str, dict[str, None]] = {}
    for name, reason in named:
        groups.setdefault(reason, {})[name] = None
    return [f"{listed([*names], NAMED)} {reason}" for reason, names in groups.items()]
