"""Numbers read back from a plot, in the units of the records."""

from collections.abc import Sequence
from html import unescape
from typing import Any

from lamina.pipeline.reports import Stored, material
from lamina.record import Counter, KernelRun, LayerRun
from lamina.report.figures import FIGURES, STEP, Material

from ..records import ROOFS, profile, run

UNITS = {"": 1, "%": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "ns": 1e-3, "µs": 1, "ms": 1e3, "s": 1e6}
UNITS |= {"B/s": 1, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
UNITS |= {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

ROWS, KERNELS, COUNTERS = profile()


def made(
    rows: list[LayerRun] = ROWS, kernels: list[KernelRun] = KERNELS, counters: list[Counter] = COUNTERS, **more: Any
) -> Material:
    """What the pipeline makes of records."""
    return material(Stored(run(), tuple(rows), ROOFS, tuple(kernels), tuple(counters)), **more)


def draw(figure: str, of: Material, batch: int = 16, phase: str = STEP) -> Any:
    """The plot of one figure at one batch size; it has to have one."""
    (setting,) = [it for it, rows in of.settings.items() if rows[0].batch == batch]
    drawn = FIGURES[figure].figure(of.scene(setting, phase))
    assert drawn.plot is not None, drawn.reason
    return drawn.plot


def reason(figure: str, of: Material, phase: str = STEP) -> str:
    """Why a figure has no plot."""
    drawn = FIGURES[figure].figure(of.scene(next(iter(of.settings)), phase))
    assert drawn.plot is None
    return drawn.reason


def bars(plot: Any) -> dict[tuple[str, str], float]:
    """Length of every bar by its series and layer, in the units of the records."""
    layers = [unescape(text) for text in plot["layout"]["yaxis"]["ticktext"]]
    title = plot["layout"]["xaxis"]["title"]["text"]
    unit = UNITS[title.rpartition(", ")[2] if ", " in title else ""]
    return {
        (trace["name"], layers[round(y)]): x * unit
        for trace in plot["data"]
        if trace["type"] == "bar"
        for x, y in zip(trace["x"], trace["y"], strict=True)
        if x is not None
    }


def words(plot: Any) -> list[str]:
    """Everything written into a plot, beside its axes."""
    said = [text.strip() for trace in plot["data"] for text in trace.get("text", ())]
    return [unescape(text) for text in said]


def counted(
    metric: str, layer: str, batch: int = 16, phase: str = STEP, of: Sequence[Counter] = COUNTERS
) -> list[tuple[float, float | None]]:
    """Duration and value of a metric for each kernel of a layer."""
    values = {(one.key, one.invocation): one.value for one in of if one.metric == metric}
    return [
        (it.duration_us, values[it.key, it.invocation])
        for it in KERNELS
        if it.key.layer == layer and it.key.batch == batch and phase in (STEP, it.key.phase)
    ]


def summed(metric: str, layer: str, **at: Any) -> float:
    return sum(value or 0.0 for _, value in counted(metric, layer, **at))


def averaged(metric: str, layer: str, **at: Any) -> float:
    pairs = counted(metric, layer, **at)
    return sum(us * (value or 0.0) for us, value in pairs) / sum(us for us, _ in pairs)
