"""Pages about stored runs: the list of them, one without figures, and a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from lamina import __version__
from lamina.record import Run
from lamina.report.html import pages
from lamina.report.html.provenance import date, facts
from lamina.report.palette import DARK, LIGHT

SIZE = 50
"""Runs on one page."""


@dataclass(frozen=True)
class Listing:
    """A page of the list of runs.

    Attributes:
        runs: of this page.
        total: of all pages.
        page: its number, from 1.
        verb: whose runs; empty for all.
        target: part of the name of what ran; empty for all.
        verbs: to choose from.
        place: of the database.
    """

    runs: Sequence[Run]
    total: int
    page: int
    verb: str
    target: str
    verbs: Sequence[str]
    place: str

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // SIZE))

    def link(self, page: int) -> str:
        """The address of another page of this list."""
        return "/?" + urlencode({"verb": self.verb, "target": self.target, "page": page})


def list_page(listing: Listing) -> str:
    """The runs of a database as links to their reports."""
    return _rendered("list", f"Runs in {listing.place}", listing=listing)


def run_page(run: Run, note: str) -> str:
    """What is known of a run that has no report."""
    return _rendered("run", f"{run.verb} {run.target}", run=run, note=note, facts=list(facts(run, [], None)))


def message_page(title: str, text: str) -> str:
    """A message, such as that there is no such run."""
    return _rendered("message", title, text=text)


def _rendered(part: str, title: str, **values: Any) -> str:
    environment = pages.environment()
    shared: Mapping[str, Any] = {"lamina": __version__, "light": LIGHT, "dark": DARK, "date": date}
    return environment.get_template("runs.html.j2").render(part=part, title=title, **shared, **values)
