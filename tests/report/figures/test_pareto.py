"""Speedup against SRAM: every design a mark, the best ones filled and joined."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest

from lamina.errors import UsageError
from lamina.report.figures.pareto import pareto_figure
from lamina.report.still import save

from .test_plots import painted


def design(sram: int, speedup: float | None, front: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "network": "lenet5",
        "batch": 1,
        "device.l2.bytes": sram,
        "layers": 2,
        "microseconds": 5.0,
        "speedup": speedup,
        "sram_bytes": sram * 2**20,
        "front": front,
        "reason": "",
    } | more


DESIGNS = [
    design(4, 0.9),
    design(3, 1.5, front=True),
    design(1, 1.0, front=True),
    design(5, None, reason="out of memory"),
    design(2, 1.1, front=True, network="<b>alexnet"),
]


def test_marks_are_designs_and_the_front_is_a_staircase() -> None:
    figure = pareto_figure(DESIGNS)
    assert figure.plot is not None
    front, marks, _, other = figure.plot["data"]
    assert sorted(zip(marks["x"], marks["y"], marks["marker"]["symbol"], strict=True)) == [
        (1, 1.0, "circle"),
        (3, 1.5, "circle"),
        (4, 0.9, "circle-open"),
    ]
    assert list(zip(front["x"], front["y"], strict=True)) == [(1, 1.0), (3, 1.0), (3, 1.5)]
    assert other["name"] == "&lt;b&gt;alexnet, batch 1" and other["marker"]["color"] != marks["marker"]["color"]
    assert "device.l2.bytes 3" in marks["customdata"][0] and "1.50x" in marks["customdata"][0]


def test_plotly_accepts_it() -> None:
    figure = pareto_figure(DESIGNS)
    go.Figure(painted(figure.plot))
    json.dumps(figure.plot, allow_nan=False)


def test_it_becomes_an_image(tmp_path: Path) -> None:
    text = save(pareto_figure(DESIGNS), tmp_path / "a.svg", "caches").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "lenet5, batch 1" in text and "SRAM, MiB" in text


def test_without_a_speedup_it_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no design has a speedup"):
        save(pareto_figure([design(1, None)]), tmp_path / "a.svg")
