"""Published results, row by row, and how to reproduce them."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import floor
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from lamina.errors import Fault, SpecError, UsageError, nearest
from lamina.spec.points import Points, Setting
from lamina.spec.validated import Validated, plain
from lamina.spec.workload import Workload

SCALES = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
Text = Annotated[str, Field(min_length=1)]


class PublishedValue(Validated):
    """One printed value (or shape), as printed.

    ``layer`` is the recipe's name of the row, ``printed`` the paper's where it differs. ``disputed`` values
    are known to disagree with what they claim to be; ``note`` says how. Of simulations, ``layer`` is a work or a
    pattern of several, and ``where`` settings that its points have.

    ``better`` says which direction is an improvement: ``higher`` for speedups, ``lower`` for overheads, ``equal`` for
    counts. By default values in ``x`` are speedups and all others are counts. ``bound``: the paper prints ``at least``
    or ``at most`` the value. ``not_applicable`` is the reason why no measurement of ours can stand beside the value.
    """

    layer: Text
    quantity: Text
    value: int | float | str
    unit: str = ""
    printed: str = ""
    disputed: bool = False
    note: str = ""
    where: dict[str, Setting] = {}
    better: Literal["", "higher", "lower", "equal"] = ""
    bound: Literal["", "at least", "at most"] = ""
    not_applicable: str = ""

    @field_validator("quantity")
    @classmethod
    def _spelled(cls, quantity: str) -> str:
        """Files of version 0.1 spell ``speed-up``."""
        return quantity.replace("speed-up", "speedup")

    @property
    def improves(self) -> str:
        """``higher``, ``lower`` or ``equal``."""
        return self.better or ("higher" if self.unit == "x" else "equal")

    def agrees(self, ours: float) -> bool:
        """Whether ``ours``, rounded or truncated to the printed digits, equals the printed value."""
        if isinstance(self.value, str):
            return False
        digits = len(repr(self.value).partition(".")[2]) if isinstance(self.value, float) else 0
        last = SCALES.get(self.unit[:1], 1) / 10**digits
        return round(self.value * 10**digits) in (floor(ours / last), round(ours / last))


class PublishedStatement(Validated):
    """A statement of a paper about a figure without printed values; ``check`` names the rule that verifies it.

    ``not_applicable`` is the reason why it cannot be verified.
    """

    about: Text
    says: Text
    check: Text
    note: str = ""
    not_applicable: str = ""


class Published(Validated):
    """One table or figure of a paper.

    ``recipe`` and ``workload`` are what to run for it. How it is reproduced:

    - ``counts``: in closed form from the network; nothing runs.
    - ``figures``: the recipe is profiled, with ``counters``; a report of the run has those figures.
    - ``changes``: a what-if.
    - ``simulates``: points that are simulated.
    - ``measures``: a measurement of `lamina.pipeline.reproduce.measured`, with recorded rows for machines without a
      GPU.
    - none of them: every layer of the recipe is measured as ``workload`` specifies.

    A table with ``configuration`` has settings, which are compared but are no results. ``not_applicable`` is the
    reason why nothing of ours can stand beside it. ``recorded`` names shipped rows of the entry, where its
    measurement does not; ``unrecorded`` is the reason why shipped rows cannot decide it, though a run can.
    """

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
    measures: str = ""
    recorded: str = ""
    unrecorded: str = ""
    configuration: bool = False
    not_applicable: str = ""
    values: tuple[PublishedValue, ...] = ()
    statements: tuple[PublishedStatement, ...] = ()

    @model_validator(mode="after")
    def _something_to_show(self) -> Published:
        if not (self.values or self.statements or self.figures):
            raise ValueError("expected values, statements or figures")
        if self.simulates and not (self.counts or self.recorded):
            raise ValueError("simulates: expected recorded, the shipped rows of its points")
        return self

    @property
    def how(self) -> str:
        """How it is reproduced, in one word."""
        if self.not_applicable:
            return "not applicable"
        if self.counts:
            return "counted"
        if self.simulates:
            return "simulated"
        return "profiled" if self.figures else "changed" if self.changes else "measured"


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
