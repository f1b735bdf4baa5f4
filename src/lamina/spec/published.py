"""Published results, row by row, and how to reproduce them."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import floor
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lamina.errors import Fault, SpecError, UsageError, nearest
from lamina.spec.faults import plain
from lamina.spec.points import Points, Setting
from lamina.spec.workload import Workload

SCALES = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
Text = Annotated[str, Field(min_length=1)]


class PublishedValue(BaseModel):
    """One printed value (or shape), as printed.

    ``layer`` is the recipe's name of the row, ``printed`` the paper's where it differs. ``disputed`` values
    are known to disagree with what they claim to be; ``note`` says how. Of simulations, ``layer`` is a work or a
    pattern of several, and ``where`` settings that its points have.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: Text
    quantity: Text
    value: int | float | str
    unit: str = ""
    printed: str = ""
    disputed: bool = False
    note: str = ""
    where: dict[str, Setting] = {}

    def agrees(self, ours: float) -> bool:
        """Whether ``ours``, rounded or truncated to the printed digits, equals the printed value."""
        if isinstance(self.value, str):
            return False
        digits = len(repr(self.value).partition(".")[2]) if isinstance(self.value, float) else 0
        last = SCALES.get(self.unit[:1], 1) / 10**digits
        return round(self.value * 10**digits) in (floor(ours / last), round(ours / last))


class PublishedStatement(BaseModel):
    """A statement of a paper about a figure without printed values; ``check`` names the rule that verifies it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: Text
    says: Text
    check: Text
    note: str = ""


class Published(BaseModel):
    """One table or figure of a paper.

    ``recipe`` and ``workload`` are what to run for it; where ``counts``, nothing runs, because its numbers
    follow from the network in closed form. An entry with ``figures`` is profiled, with ``counters``, and those figures
    of a report show it; one with ``changes`` is a what-if; the points of one that ``simulates`` are simulated.
    Of an ``unmeasured`` one nothing of ours stands beside the numbers; ``note`` says why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"[a-z0-9][a-z0-9.-]*")]
    title: Text
    paper: Text
    place: Text
    """The table or figure."""
    recipe: Text
    counts: bool = False
    workload: Workload = Workload()
    note: str = ""
    figures: tuple[Text, ...] = ()
    counters: tuple[Text, ...] = ()
    changes: tuple[Text, ...] = ()
    simulates: Points | None = None
    unmeasured: bool = False
    values: tuple[PublishedValue, ...] = ()
    statements: tuple[PublishedStatement, ...] = ()

    @model_validator(mode="after")
    def _something_to_show(self) -> Published:
        if not (self.values or self.statements or self.figures):
            raise ValueError("expected values, statements or figures")
        if self.unmeasured and not self.note:
            raise ValueError("unmeasured: expected a note with the reason")
        return self

    @property
    def how(self) -> str:
        """How it is reproduced, in one word."""
        if self.unmeasured:
            return "not measured"
        if self.counts:
            return "counted"
        return (
            "simulated" if self.simulates else "profiled" if self.figures else "changed" if self.changes else "measured"
        )


def entry(id: str) -> Published:
    """The entry of that id.

    Raises:
        UsageError: there is none; with the nearest id.
    """
    known = {each.id: each for each in entries()}
    if id not in known:
        raise UsageError(f"there is no published result {id!r}: {nearest(id, known)}")
    return known[id]


@cache
def entries() -> tuple[Published, ...]:
    """Every entry, by id."""
    folder = files("lamina.recipes") / "papers" / "published"
    found = [read_entry(file) for file in folder.iterdir() if file.name.endswith(".toml")]
    return tuple(sorted(found, key=lambda each: each.id))


def read_entry(file: Traversable) -> Published:
    """The file of one entry; its name is the id.

    Raises:
        SpecError: all that is wrong with it.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        published = Published.model_validate_json(json.dumps(table), strict=True)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(file.name, str(error)) from None
    except ValidationError as error:
        faults = [Fault(message) for _, message in plain(error, Published.model_fields)]
        raise SpecError(file.name, faults) from None
    if file.name != f"{published.id}.toml":
        raise SpecError(file.name, f"expected a file called {published.id}.toml, after its id")
    return published
