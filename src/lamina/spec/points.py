"""Simulation points of a published figure: workloads at every combination of axes, each with a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated

from pydantic import Field, model_validator

from lamina.spec.validated import Validated

Text = Annotated[str, Field(min_length=1)]
Setting = str | int | float | bool
Settings = Mapping[str, Setting]
"""Settings of a simulation by dotted name, as in ``lamina simulate``."""


@dataclass(frozen=True)
class SimulationPoint:
    """One simulation and its baseline. ``axes`` are the settings that differ between the points of a workload.

    ``times``: so many layers of the network have this product. ``networks``: so many networks have this layer.
    """

    work: str
    times: int
    axes: Settings
    settings: Settings
    baseline: Settings
    networks: int = 1

    @property
    def title(self) -> str:
        return ", ".join([self.work, *(f"{key} {value}" for key, value in self.axes.items())])

    def matches(self, work: str, where: Settings) -> bool:
        """Whether it belongs to a workload, by name or pattern, and has these settings."""
        return fnmatchcase(self.work, work) and all(self.settings.get(key) == value for key, value in where.items())


class Work(Validated):
    """A named workload of a paper: a layer of a network at an input density. Its settings override axes."""

    name: Text
    settings: dict[str, Setting]
    times: Annotated[int, Field(ge=1)] = 1
    networks: Annotated[int, Field(ge=1)] = 1
    """So many of the paper's networks have this layer, and differ elsewhere."""


class Points(Validated):
    """Every workload at every combination of the axes. ``baseline`` overrides settings of each point.

    ``shows`` are quantities that the paper plots for each point without printing their values.
    """

    base: dict[str, Setting] = {}
    baseline: dict[str, Setting] = {}
    axes: dict[str, tuple[Setting, ...]] = {}
    works: Annotated[tuple[Work, ...], Field(min_length=1)]
    shows: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _validated(self) -> Points:
        names = [work.name for work in self.works]
        if len({*names}) < len(names):
            raise ValueError(f"works: expected each name once, got {', '.join(names)}")
        if empty := [key for key, values in self.axes.items() if not values]:
            raise ValueError(f"axes.{empty[0]}: expected at least one value")
        return self

    def description(self, changes: Settings | None = None) -> str:
        """The settings that all points share, as text."""
        shared = {**self.base, **(changes or {})}
        parts = [f"Simulated with {_listed(shared)}" if shared else "Simulated", _listed(self.baseline)]
        return ", baseline ".join(filter(None, parts)) + "."

    def points(self, network: str, changes: Settings | None = None) -> Iterator[SimulationPoint]:
        """The points of workloads of ``network``, unless they name another; ``changes`` override all settings."""
        changes = changes or {}
        axes = {key: (changes[key],) if key in changes else values for key, values in self.axes.items()}
        for work in self.works:
            for values in product(*axes.values()):
                at = dict(zip(axes, values, strict=True))
                settings = {"network": network, **self.base, **at, **work.settings, **changes}
                baseline = {**settings, **self.baseline}
                yield SimulationPoint(work.name, work.times, at, settings, baseline, work.networks)


def _listed(settings: Settings) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
