"""The points at which a published figure is simulated: works at every combination of axes, each beside a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = Annotated[str, Field(min_length=1)]
Setting = str | int | float | bool
Settings = Mapping[str, Setting]
"""Settings of a simulation by their dotted names, as ``lamina simulate`` takes them."""


@dataclass(frozen=True)
class Point:
    """One simulation and what it is compared with. ``axes`` are the settings that tell it from others of its work.

    ``times``: so many layers of the network have this product.
    """

    work: str
    times: int
    axes: Settings
    settings: Settings
    baseline: Settings

    @property
    def title(self) -> str:
        return ", ".join([self.work, *(f"{key} {value}" for key, value in self.axes.items())])

    def matches(self, work: str, where: Settings) -> bool:
        """Whether it is of a work, by name or pattern, and has these settings."""
        return fnmatchcase(self.work, work) and all(self.settings.get(key) == value for key, value in where.items())


class Work(BaseModel):
    """What a paper calls by one name: a layer of a network, at a density of its input. Its settings go before axes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    settings: dict[str, Setting]
    times: Annotated[int, Field(ge=1)] = 1


class Points(BaseModel):
    """Every work at every combination of the axes. ``baseline`` replaces settings of each point.

    ``shows`` are quantities that the paper draws of each point without printing them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: dict[str, Setting] = {}
    baseline: dict[str, Setting] = {}
    axes: dict[str, tuple[Setting, ...]] = {}
    works: Annotated[tuple[Work, ...], Field(min_length=1)]
    shows: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _told_apart(self) -> Points:
        names = [work.name for work in self.works]
        if len({*names}) < len(names):
            raise ValueError(f"works: expected each name once, got {', '.join(names)}")
        if empty := [key for key, values in self.axes.items() if not values]:
            raise ValueError(f"axes.{empty[0]}: expected at least one value")
        return self

    def told(self, changes: Settings | None = None) -> str:
        """What all points share, in words."""
        shared = {**self.base, **(changes or {})}
        said = [f"Simulated with {_listed(shared)}" if shared else "Simulated", _listed(self.baseline)]
        return ", beside ".join(filter(None, said)) + "."

    def points(self, network: str, changes: Settings | None = None) -> Iterator[Point]:
        """The points of works of ``network``, unless these name another; ``changes`` are the last word on all."""
        changes = changes or {}
        axes = {key: (changes[key],) if key in changes else values for key, values in self.axes.items()}
        for work in self.works:
            for values in product(*axes.values()):
                at = dict(zip(axes, values, strict=True))
                settings = {"network": network, **self.base, **at, **work.settings, **changes}
                yield Point(work.name, work.times, at, settings, {**settings, **self.baseline})


def _listed(settings: Settings) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
