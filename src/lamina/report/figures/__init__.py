"""Figures of a run: pure functions from records to plots as plain data, drawn by the browser or by matplotlib."""

from lamina.report.figures.figure import Figure, Template
from lamina.report.figures.material import STEP, Material, Scene
from lamina.report.figures.registry import FIGURES, TOPICS, template

__all__ = ["FIGURES", "STEP", "TOPICS", "Figure", "Material", "Scene", "Template", "template"]
