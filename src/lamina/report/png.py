"""A static image of a run, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lamina.errors import MissingError, UsageError
from lamina.record import LayerRun
from lamina.record.comparison import grid
from lamina.report import units
from lamina.report.layers import by_layer, label, short
from lamina.report.palette import LIGHT, PHASES


def figure_png(rows: Sequence[LayerRun], path: Path, title: str = "") -> Path:
    """Draw the time of each layer, stacked by phase, and return ``path``.

    Raises:
        MissingError: matplotlib is not installed.
        UsageError: the rows span more than one setting, or none of them has a time.
    """
    if axes := grid(rows):
        raise UsageError(f"an image shows one setting, but these rows differ in {', '.join(axes)}: filter them")
    layers = by_layer(rows)
    if not any(row.timing for phases in layers.values() for row in phases.values()):
        raise UsageError(f"expected rows with a time to draw, got {len(rows)} without any")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingError(
            "drawing a PNG needs matplotlib, which is not installed: pip install 'lamina[figures]'"
        ) from error
    times = {
        phase: [
            row.timing.median_us if (row := phases.get(phase)) and row.timing else 0.0 for phases in layers.values()
        ]
        for phase in PHASES
    }
    length, unit = units.axis_unit(max(map(sum, zip(*times.values(), strict=True))))
    figure = Figure(figsize=(9, 1.4 + 0.26 * len(layers)), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.add_subplot()
    left = [0.0] * len(layers)
    for phase, values in times.items():
        if any(values):
            widths = [time / length for time in values]
            axis.barh(range(len(layers)), widths, left=left, color=LIGHT[phase], label=phase, height=0.72)
            left = [x + width for x, width in zip(left, widths, strict=True)]
    for place, (end, phases) in enumerate(zip(left, layers.values(), strict=True)):
        axis.text(end, place, f" {label(phases)}", va="center", fontsize=8, color=LIGHT["muted"], parse_math=False)
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.set_yticks(range(len(layers)), [short(name) for name in layers], parse_math=False)
    axis.invert_yaxis()
    axis.set_xlabel(f"time, {unit}")
    axis.set_title(title, loc="left", parse_math=False)
    axis.grid(axis="x", color=LIGHT["line"])
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Software": "lamina"})
    return path
