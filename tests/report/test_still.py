"""Figures as files: what matplotlib drew, pixel by pixel and word by word."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from lamina.errors import MissingError, UsageError
from lamina.explain import compare
from lamina.record import LayerRun
from lamina.report.figures import FIGURES, STEP, Figure, Material
from lamina.report.palette import LIGHT
from lamina.report.still import save

from .figures.reading import KERNELS, ROWS, made
from .records import timed

MATERIAL = replace(made(), comparisons=compare(ROWS, ROWS), against="itself")


def figure(name: str, of: Material = MATERIAL, phase: str = STEP) -> Figure:
    return FIGURES[name].figure(of.scene(next(iter(of.settings)), phase))


def area(path: Path, colour: str) -> int:
    """How many pixels have exactly this colour."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    return int((pixels == [int(LIGHT[colour][i : i + 2], 16) for i in (1, 3, 5)]).all(axis=1).sum())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_an_image(name: str, tmp_path: Path) -> None:
    drawn = figure(name)
    if drawn.plot is None:
        with pytest.raises(UsageError, match=f"figure '{name}' cannot be drawn: nothing here was counted"):
            save(drawn, tmp_path / "a.svg")
        return
    text = save(drawn, tmp_path / "a.svg", "AlexNet").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert text == save(drawn, tmp_path / "b.svg", "AlexNet").read_text(encoding="utf-8")


def halves(row: LayerRun) -> LayerRun:
    us = {"forward": 100.0, "backward_data": 300.0, "backward_weight": 200.0}[row.phase]
    return timed(row, us)


def test_bars_are_as_long_as_times(tmp_path: Path) -> None:
    rows = [halves(row) for row in ROWS if row.layer == "conv2" and row.batch == 16]
    path = save(figure("time", Material(rows)), tmp_path / "a.png")
    assert area(path, "backward_data") / area(path, "backward_weight") == pytest.approx(1.5, rel=0.1)
    assert area(path, "backward_data") / area(path, "forward") == pytest.approx(3, rel=0.15)


def test_marks_of_the_timeline_cover_the_time_of_their_phase(tmp_path: Path) -> None:
    of = replace(MATERIAL, kernels={key: launches for key, launches in MATERIAL.kernels.items() if key.batch == 16})
    forward = [it.duration_us for it in KERNELS if it.key.batch == 16 and it.key.phase == "forward"]
    plot = figure("timeline", of, "forward").plot
    assert plot is not None
    for trace in plot["data"]:
        trace["marker"]["opacity"] = [1.0] * len(trace["x"])
    path = save(replace(figure("timeline"), plot=plot), tmp_path / "a.png")
    with Image.open(path) as image:
        width, height = image.size
    assert len(plot["data"][0]["x"]) == len(forward)
    assert area(path, "forward") > 0.05 * width * height


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    rows = [replace(row, layer=f"{row.layer} $\\frac{{$ <b>") for row in ROWS]
    with Image.open(save(figure("time", Material(rows)), tmp_path / "a.png", "$\\frac{$ & <b>")) as image:
        assert image.size[0] == 1440


@pytest.mark.parametrize("name", ["a.pdf", "a", "png"])
def test_only_two_formats(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a name that ends in \.png or \.svg"):
        save(figure("time"), tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingError, match=r"lamina\[figures\]"):
        save(figure("time"), tmp_path / "a.png")
