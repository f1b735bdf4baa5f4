"""Every figure at once: a caption, a plot that plotly takes, and nothing that means something to its HTML."""

import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from lamina.errors import UsageError
from lamina.explain import compare
from lamina.report.figures import FIGURES, STEP, TOPICS, Material, template
from lamina.report.palette import DARK, LIGHT, PHASES

from .reading import COUNTERS, KERNELS, ROWS, made
from .test_plots import painted

HOSTILE = "<i>&'</i>"


def hostile() -> Material:
    rows = [replace(row, layer=row.layer + HOSTILE, kind=row.kind + HOSTILE) for row in ROWS]
    kernels = [replace(it, key=it.key._replace(layer=it.key.layer + HOSTILE), name=it.name + HOSTILE) for it in KERNELS]
    counters = [replace(it, key=it.key._replace(layer=it.key.layer + HOSTILE)) for it in COUNTERS]
    return replace(made(rows, kernels, counters), comparisons=compare(rows, rows), against=HOSTILE)


MATERIAL = hostile()


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("phase", [STEP, *PHASES])
def test_plotly_takes_every_figure(figure: str, phase: str) -> None:
    for setting in MATERIAL.settings:
        drawn = FIGURES[figure].figure(MATERIAL.scene(setting, phase))
        assert (drawn.plot is None) == bool(drawn.reason)
        if drawn.plot is not None:
            text = json.dumps(drawn.plot, allow_nan=False)
            assert "<i>" not in text
            go.Figure(painted(drawn.plot))


def test_every_figure_says_what_it_is() -> None:
    for figure in FIGURES.values():
        assert figure.title and figure.caption.endswith(".")
        assert figure.topic in TOPICS
    assert len({figure.title for figure in FIGURES.values()}) == len(FIGURES)


def test_colours_have_names_in_both_palettes() -> None:
    for figure in FIGURES.values():
        drawn = figure.figure(MATERIAL.scene(next(iter(MATERIAL.settings))))
        for trace in drawn.plot["data"] if drawn.plot else ():
            for part in ("marker", "line", "textfont"):
                if "color" in trace.get(part, {}):
                    assert trace[part]["color"] in LIGHT.keys() & DARK.keys(), figure.id


def test_an_unknown_figure_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no figure 'stals': did you mean 'stalls'"):
        template("stals")
