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

    def __str__(self) -> str:
        """A line about the model, and one about each layer with parameters."""
        weighted = [layer for layer in self.layers if layer.parameters_before]
        before = sum(layer.parameters_before for layer in weighted)
        after = sum(layer.parameters_after for layer in weighted)
        replaced = sum(layer.refusal is None for layer in weighted)
        head = f"{self.method}: {replaced} of {len(weighted)} layers replaced, {after:,} of {before:,} parameters"
        lines = [f"{head}; whole model: {self.whole.reason}" if self.whole else head]
        rows = [(layer.layer, layer.kind, _outcome(layer)) for layer in weighted]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
        return "\n".join(lines + [f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {what}" for name, kind, what in rows])


def _outcome(layer: ConvertedLayer) -> str:
    """What became of a layer, in a few words."""
    if layer.refusal is not None:
        return f"unchanged: {layer.refusal}"
    if layer.selection is None:
        return layer.method
    gained = layer.selection.speedup
    return layer.selection.impl + ("" if gained is None else f": {gained:.2f}x")
