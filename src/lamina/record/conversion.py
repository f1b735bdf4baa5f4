"""What ``convert()`` did to a model: every layer replaced, every layer skipped and why."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.record.selection import Selection


@dataclass(frozen=True)
class ConvertedLayer:
    """One layer: replaced by ``method`` where ``refusal`` is ``None``.

    ``selection`` holds what was measured where implementations were compared; a layer where dense won keeps its dense
    module, and the reason is its ``refusal``.
    """

    layer: str
    kind: str
    method: str
    parameters_before: int
    parameters_after: int
    refusal: str | None = None
    selection: Selection | None = None


@dataclass(frozen=True)
class Conversion:
    """All layers that a conversion looked at; ``whole`` compares the model's steps before and after, where measured."""

    method: str
    layers: tuple[ConvertedLayer, ...]
    whole: Selection | None = None

    @property
    def replaced(self) -> tuple[ConvertedLayer, ...]:
        """Layers that are new."""
        return tuple(layer for layer in self.layers if layer.refusal is None)

    @property
    def skipped(self) -> tuple[ConvertedLayer, ...]:
        """Layers left as they were, each with its reason."""
        return tuple(layer for layer in self.layers if layer.refusal is not None)
