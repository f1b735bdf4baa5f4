"""What figures are drawn from: the records of one run, and what was computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lamina.record import KernelRun, Key, LayerRun, Roofline, Roofs
from lamina.record.comparison import Comparison, Setting, by_setting
from lamina.report.layers import by_layer, slowest
from lamina.report.palette import PHASES

STEP = "step"
"""All phases of a layer together, where a phase is requested."""


@dataclass(frozen=True)
class Material:
    """Everything that the figures of one run may need; what is empty was not recorded.

    ``counted`` gives each row's metrics and figures by name over all its kernels, ``None`` where the chip could
    not tell; those of a whole layer stand under its key with the phase ``step``. ``names`` says what a person
    calls a kernel. ``comparisons`` hold the run ``against`` (a), described in words, beside this one (b).
    """

    rows: Sequence[LayerRun]
    roofs: Roofs | None = None
    rooflines: Mapping[LayerRun, Roofline] = field(default_factory=dict)
    shares: Mapping[LayerRun, float] = field(default_factory=dict)
    kernels: Mapping[Key, Sequence[KernelRun]] = field(default_factory=dict)
    counted: Mapping[Key, Mapping[str, float | None]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    against: str = ""

    @cached_property
    def settings(self) -> Mapping[Setting, tuple[LayerRun, ...]]:
        """The rows of each point of the grid that the run spans."""
        return by_setting(self.rows)

    def scene(self, setting: Setting, phase: str = STEP) -> Scene:
        """One point of the grid, and one phase or all of them."""
        return Scene(self, self.settings.get(setting, ()), phase)


@dataclass(frozen=True)
class Scene:
    """What one figure shows: the rows of one setting, and one phase of them or all (``step``)."""

    material: Material
    rows: tuple[LayerRun, ...]
    phase: str = STEP

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases to show."""
        return PHASES if self.phase == STEP else (self.phase,)

    @cached_property
    def layers(self) -> Mapping[str, Mapping[str, LayerRun]]:
        """The rows of each layer that has any of the phases, by phase, in order of execution."""
        chosen = by_layer(row for row in self.rows if row.phase in self.phases)
        return {layer: rows for layer, rows in chosen.items() if any(row.timing for row in rows.values())}

    @cached_property
    def shown(self) -> Mapping[str, Mapping[str, LayerRun]]:
        """The layers that a figure with a bar for each of them shows: the slowest, where there are too many."""
        return {layer: self.layers[layer] for layer in slowest(self.layers)}

    def counted(self, layer: str, name: str) -> float | None:
        """A metric or figure over the kernels of a layer, or of its chosen phase."""
        return self.material.counted.get(self._key(layer), {}).get(name)

    def counts(self, name: str) -> tuple[float | None, ...]:
        """The same of every layer that is shown."""
        return tuple(self.counted(layer, name) for layer in self.shown)

    def launches(self, layer: str) -> list[KernelRun]:
        """The kernels of a layer's chosen phases."""
        return [it for row in self.layers[layer].values() for it in self.material.kernels.get(row.key, ())]

    def _key(self, layer: str) -> Key:
        key = next(iter(self.layers[layer].values())).key
        return key._replace(phase=self.phase)
