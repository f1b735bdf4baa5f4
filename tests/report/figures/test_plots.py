"""Figures are plain data: plotly's own validators say whether it means something."""

import json
from dataclasses import replace
from math import nan
from typing import Any

import plotly.graph_objects as go
import pytest

from lamina.explain import rooflines, shares
from lamina.report.figures.layer_times import time_figure
from lamina.report.figures.plot import CONFIG, plain
from lamina.report.figures.roofline import roofline_figure
from lamina.report.figures.training import training_figure
from lamina.report.palette import LIGHT, PHASES

from ..records import ROOFS, bench, changed, epochs, failed, pick, whole_step


def painted(node: Any) -> Any:
    """The figure with its colours filled in, as the page does."""
    if isinstance(node, list):
        return [painted(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: LIGHT[value]
        if key.endswith("color") and isinstance(value, str)
        else [[at, LIGHT[name]] for at, name in value]
        if key == "colorscale"
        else painted(value)
        for key, value in node.items()
    }


ROWS = [*bench(), whole_step(bench(), 44_000)]
ROOFLINE = roofline_figure(ROWS, ROOFS, rooflines(ROWS, ROOFS), shares(ROWS))
TIME = time_figure(ROWS, shares(ROWS))
TRAINING = training_figure(epochs())


@pytest.mark.parametrize("figure", [TIME, ROOFLINE, TRAINING], ids=["time", "roofline", "training"])
def test_plotly_accepts_the_figure(figure: Any) -> None:
    go.Figure(painted(figure))
    json.dumps(figure, allow_nan=False)


def test_bars_are_the_times() -> None:
    assert TIME is not None
    bars = [trace for trace in TIME["data"] if trace["type"] == "bar"]
    assert [trace["name"] for trace in bars] == list(PHASES)
    for trace in bars:
        rows = [row for row in bench() if row.phase == trace["name"] and row.timing]
        assert trace["x"] == pytest.approx([row.timing.median_us / 1e3 for row in rows if row.timing])
        names = [TIME["layout"]["yaxis"]["ticktext"][place] for place in trace["y"]]
        assert names == [row.layer for row in rows]
    assert TIME["layout"]["xaxis"]["title"]["text"] == "time, ms"


def test_a_phase_without_a_time_is_named_beside_its_bar() -> None:
    rows = bench()
    rows = changed(rows, pick(rows, "fc6", "backward_data"), failed(pick(rows, "fc6", "backward_data")))
    figure = time_figure(rows, {})
    assert figure is not None
    (alarm,) = (trace for trace in figure["data"] if trace.get("textfont", {}).get("color") == "alarm")
    assert len(alarm["text"]) == 1
    assert alarm["text"][0].endswith("no backward_data")


def test_marks_stand_at_intensity_and_rate() -> None:
    assert ROOFLINE is not None
    marks = {trace["name"]: trace for trace in ROOFLINE["data"] if trace["mode"] == "markers"}
    assert sum(len(trace["x"]) for trace in marks.values()) == 44
    row = pick(bench(), "conv1")
    assert row.flops and row.bytes and row.timing
    assert marks["forward"]["x"][0] == pytest.approx(row.flops / row.bytes)
    assert marks["forward"]["y"][0] == pytest.approx(row.flops / row.timing.median_us * 1e6)
    assert "<b>conv1</b>" in marks["forward"]["customdata"][0]


def test_the_area_of_a_mark_grows_with_its_share() -> None:
    assert ROOFLINE is not None
    marks = next(trace for trace in ROOFLINE["data"] if trace["mode"] == "markers" and trace["name"] == "forward")
    order = sorted(range(len(marks["x"])), key=lambda place: marks["marker"]["size"][place])
    parts = shares(ROWS)
    forward = [row for row in bench() if row.phase == "forward"]
    assert [forward[place].layer for place in order] == [
        row.layer for row in sorted(forward, key=lambda row: parts[row])
    ]


def test_every_measured_roof_is_drawn_and_those_in_use_stand_out() -> None:
    assert ROOFLINE is not None
    lines = [trace for trace in ROOFLINE["data"] if trace["mode"] == "lines"]
    memory, *compute = lines
    assert memory["y"][1] / memory["x"][1] == pytest.approx(ROOFS.copy_gbs * 1e9)
    flat = {trace["y"][0] / 1e9: trace["line"]["color"] for trace in compute}
    assert flat == {
        gflops: "ink" if precision == "fp32" else "muted" for precision, gflops in ROOFS.gemm_gflops.items()
    }
    labels = [note["text"] for note in ROOFLINE["layout"]["annotations"]]
    assert labels == [
        "fp64 58.4 TFLOP/s, fp32 51.2 TFLOP/s",
        "tf32 402 TFLOP/s",
        "bf16 781 TFLOP/s",
        "copy 3.35 TB/s",
    ]


@pytest.mark.parametrize("kinds", [{"convolution"}, {"activation"}])
def test_roofs_and_marks_lie_within_the_axes(kinds: set[str]) -> None:
    rows = [row for row in bench() if row.kind in kinds]
    figure = roofline_figure(rows, ROOFS, rooflines(rows, ROOFS), shares(rows))
    assert figure is not None
    for name in "xy":
        low, high = (10**end for end in figure["layout"][f"{name}axis"]["range"])
        for trace in figure["data"]:
            assert all(low * 0.999 <= at <= high * 1.001 for at in trace[name])


def test_nothing_to_draw_is_no_figure() -> None:
    lost = [failed(row) for row in bench()]
    assert time_figure(lost, {}) is None
    assert roofline_figure(lost, ROOFS, rooflines(lost, ROOFS), {}) is None
    assert roofline_figure(bench(), ROOFS, {}, {}) is None
    assert training_figure([]) is None


def test_a_diverged_loss_is_a_gap() -> None:
    figure = training_figure([*epochs(3), replace(epochs(4)[-1], train_loss=nan)])
    assert figure is not None
    assert figure["data"][0]["y"][-1] is None
    json.dumps(figure, allow_nan=False)


def test_names_are_text() -> None:
    assert plain("<a href='x'>&amp;</a>\n") == "&lt;a href='x'&gt;&amp;amp;&lt;/a&gt; "


def test_hover_and_ticks_hold_plain_names() -> None:
    rows = [replace(row, layer=f"<b>{row.layer}", kind="a&b") for row in bench()]
    figures = time_figure(rows, {}), roofline_figure(rows, ROOFS, rooflines(rows, ROOFS), {})
    for figure in figures:
        text = json.dumps(figure)
        assert "<b><b>" not in text
        assert "<b>&lt;b&gt;conv1</b> a&amp;b" in text


def test_no_button_sends_a_figure_away() -> None:
    assert CONFIG["displaylogo"] is False
    assert not [name for group in CONFIG["modeBarButtons"] for name in group if "send" in name.lower()]
    assert (CONFIG["showSendToCloud"], CONFIG["plotlyServerURL"]) == (False, "")
