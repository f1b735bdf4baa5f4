"""A figure: what it shows, in words and as a plot, or why it cannot be drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.report.figures.material import Scene
from lamina.report.figures.plot import Plot


@dataclass(frozen=True)
class Figure:
    """``caption`` says what is shown and where the values come from.

    ``plot`` is as plotly describes it, or ``None`` with the ``reason`` why there is nothing to draw. A
    ``wide`` one wants the breadth of a page, two others share it.
    """

    id: str
    title: str
    caption: str
    plot: Plot | None
    reason: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Template:
    """A figure that can be drawn of any scene. ``draw`` answers a plot, or why there is none.

    ``by_phase`` marks those that show one phase, or a layer's phases together, as the reader chooses;
    ``by_setting`` those that show one point of the grid; ``by_layer`` those with a bar for each layer, of which only
    the slowest are shown where there are too many.
    """

    id: str
    title: str
    caption: str
    topic: str
    draw: Callable[[Scene], Plot | str]
    by_phase: bool = True
    by_setting: bool = True
    wide: bool = False
    by_layer: bool = True

    def figure(self, scene: Scene) -> Figure:
        """The figure of one scene."""
        drawn = self.draw(scene)
        if isinstance(drawn, str):
            return Figure(self.id, self.title, self.caption, None, drawn, self.wide)
        caption = self.caption
        if self.by_layer and len(scene.shown) < len(scene.layers):
            caption += f" Shown are the {len(scene.shown)} slowest of {len(scene.layers)} layers."
        return Figure(self.id, self.title, caption, drawn, wide=self.wide)
