"""Figures as files: the plots of the page drawn by matplotlib, in the light palette, for paper and README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from lamina.errors import MissingError, UsageError
from lamina.report.figures import Figure
from lamina.report.figures.plot import Plot
from lamina.report.palette import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

ENDINGS = (".png", ".svg")
WIDTH, PIXELS = 9.0, 100
"""Inches across, and pixels of a plot's layout to the inch."""
DOTS = 160
"""Resolution of a PNG, per inch."""
LINE = 150
"""Characters of the caption's lines."""
MARKERS = {"circle": "o", "circle-open": "o", "square": "s", "diamond": "D", "star": "*"}
DASHES = {"solid": "-", "dot": ":"}


def save(figure: Figure, path: Path, of: str = "") -> Path:
    """Draw a figure as PNG or SVG, as the path ends, and return the path. ``of`` names what it was drawn from.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: there is nothing to draw, or the path ends otherwise.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path.name}: expected a name that ends in {' or '.join(ENDINGS)}")
    if figure.plot is None:
        raise UsageError(f"figure {figure.id!r} cannot be drawn: {figure.reason}")
    try:
        from matplotlib import rc_context
        from matplotlib.collections import PathCollection
        from matplotlib.figure import Figure as Sheet
    except ImportError as error:
        raise MissingError(
            "drawing a figure needs matplotlib, which is not installed: pip install 'lamina[figures]'"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "lamina", "font.size": 9, "text.parse_math": False}):
        sheet = Sheet(figsize=(WIDTH, 1.1 + figure.plot["layout"]["height"] / PIXELS), dpi=DOTS, layout="constrained")
        sheet.suptitle(f"{figure.title}\n{of}" if of else figure.title, x=0.01, ha="left", fontsize=11)
        sheet.supxlabel(fill(figure.caption, LINE), x=0.01, ha="left", fontsize=7.5, color=LIGHT["muted"])
        axes = sheet.add_subplot()
        _draw(axes, figure.plot)
        if axes.get_legend_handles_labels()[1] and figure.plot["layout"].get("showlegend", True):
            legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)
            for handle in legend.legend_handles:
                if isinstance(handle, PathCollection):
                    handle.set_sizes([36])  # marks say something by their size only in the figure
        stamp = {"Date": None, "Creator": "lamina"} if path.suffix.lower() == ".svg" else {"Software": "lamina"}
        sheet.savefig(path, metadata=stamp)
    return path


def _draw(axes: Axes, plot: Plot) -> None:
    layout = plot["layout"]
    for which in ("x", "y"):
        _axis(axes, which, layout[f"{which}axis"])
    ends: dict[float, float] = {}
    for trace in plot["data"]:
        kind = trace["type"]
        if kind == "bar":
            _bars(axes, trace, ends if layout.get("barmode") == "stack" else {})
        elif kind == "heatmap":
            _heat(axes, trace)
        else:
            _scatter(axes, trace)
    for note in layout.get("annotations", ()):
        _note(axes, note)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LIGHT["line"])
    axes.tick_params(length=0)


def _axis(axes: Axes, which: str, wanted: Mapping[str, Any]) -> None:
    """Title, ends, scale and ticks of the axis ``x`` or ``y``."""
    log = wanted.get("type") == "log"
    it = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}label")(unescape(wanted["title"]["text"]))
    if log:
        getattr(axes, f"set_{which}scale")("log")
    if "range" in wanted:
        ends = [10**end if log else end for end in wanted["range"]]
        getattr(axes, f"set_{which}lim")(*ends)
    if "tickvals" in wanted:
        inside = sorted(getattr(axes, f"get_{which}lim")())
        shown = [
            (at, unescape(text))
            for at, text in zip(wanted["tickvals"], wanted["ticktext"], strict=True)
            if inside[0] <= at <= inside[1]
        ]
        it.set_ticks([at for at, _ in shown], [text for _, text in shown])
        it.minorticks_off()
    if wanted.get("side") == "top":
        it.tick_top()
        axes.tick_params(axis="x", labelrotation=35)
    if wanted.get("showgrid", True):
        it.grid(color=LIGHT["line"])


def _bars(axes: Axes, trace: Mapping[str, Any], ends: dict[float, float]) -> None:
    """Horizontal bars, from their ``base`` or the ends of those before them."""
    points = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None]
    bases = trace.get("base") or [ends.get(y, 0.0) for _, y in points]
    ends |= {y: base + x for (x, y), base in zip(points, bases, strict=True)}
    marker = trace["marker"]
    alphas = marker.get("opacity", 1.0)
    drawn = axes.barh(
        [y for _, y in points],
        [x for x, _ in points],
        left=bases,
        height=trace.get("width", 0.75),
        color=LIGHT[marker["color"]],
        edgecolor=LIGHT["paper"],
        linewidth=0.3,
        label=unescape(trace["name"]) if trace.get("showlegend") else None,
    )
    if isinstance(alphas, list):
        for patch, alpha in zip(drawn, alphas, strict=True):
            patch.set_alpha(alpha)


def _heat(axes: Axes, trace: Mapping[str, Any]) -> None:
    """Shaded cells; those without a value stay white."""
    cells = [[float("nan") if value is None else value for value in row] for row in trace["z"]]
    xs, ys = ([place - 0.5 for place in range(len(trace[of]) + 1)] for of in ("x", "y"))
    axes.pcolormesh(
        xs, ys, cells, cmap=_shades(trace["colorscale"]), vmin=trace["zmin"], vmax=trace["zmax"], edgecolors="white"
    )


def _shades(scale: Sequence[tuple[float, str]]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shades", [(at, LIGHT[name]) for at, name in scale])


def _scatter(axes: Axes, trace: Mapping[str, Any]) -> None:
    """Words, lines or marks at points."""
    if trace["mode"] == "text":
        left = trace["textposition"] == "middle right"
        font = trace["textfont"]
        for x, y, text in zip(trace["x"], trace["y"], trace["text"], strict=True):
            axes.text(
                x,
                y,
                unescape(text),
                ha="left" if left else "center",
                va="center",
                fontsize=7,
                color=LIGHT[font["color"]],
            )
    elif trace["mode"] == "lines":
        line = trace["line"]
        axes.plot(
            trace["x"],
            trace["y"],
            color=LIGHT[line["color"]],
            linewidth=0.7 * line["width"],
            linestyle=DASHES[line["dash"]],
        )
    else:
        _marks(axes, trace)


def _marks(axes: Axes, trace: Mapping[str, Any]) -> None:
    marker = trace["marker"]
    colour = LIGHT[marker["color"]]
    count = len(trace["x"])
    sizes, symbols = (
        value if isinstance(value, list) else [value] * count for value in (marker["size"], marker["symbol"])
    )
    for symbol in dict.fromkeys(symbols):
        of = [place for place in range(count) if symbols[place] == symbol]
        axes.scatter(
            [trace["x"][place] for place in of],
            [trace["y"][place] for place in of],
            s=[(0.7 * sizes[place]) ** 2 for place in of],
            marker=MARKERS[symbol],
            facecolors="none" if symbol.endswith("-open") else colour,
            edgecolors=colour,
            linewidths=0.8,
            alpha=marker.get("opacity", 1.0),
            zorder=3,
            label=unescape(trace["name"]) if trace.get("showlegend") and symbol == symbols[0] else None,
        )


def _note(axes: Axes, note: Mapping[str, Any]) -> None:
    """Words on a figure with two logarithmic axes, where plotly counts in powers of ten."""
    axes.text(
        10 ** note["x"],
        10 ** note["y"],
        unescape(note["text"]),
        ha=note["xanchor"],
        va="bottom",
        fontsize=7.5,
        color=LIGHT[note["font"]["color"]],
    )
