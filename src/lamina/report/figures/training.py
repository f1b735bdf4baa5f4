"""The curves of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from lamina.record import Epoch
from lamina.report.figures.plot import Plot, axis, frame


def training_figure(epochs: Sequence[Epoch]) -> Plot | None:
    """Loss and accuracy over epochs, training and test; ``None`` without epochs."""
    if not epochs:
        return None
    curves = (
        ("train loss", "backward_data", "dot", "y", [it.train_loss for it in epochs]),
        ("test loss", "backward_data", "solid", "y", [it.test_loss for it in epochs]),
        ("train accuracy", "forward", "dot", "y2", [it.train_accuracy for it in epochs]),
        ("test accuracy", "forward", "solid", "y2", [it.test_accuracy for it in epochs]),
    )
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(epochs) < 40 else "lines",
            "name": name,
            "x": [it.epoch for it in epochs],
            "y": [value if isfinite(value) else None for value in values],
            "yaxis": side,
            "line": {"color": colour, "dash": dash, "width": 2},
            "hovertemplate": f"{name} %{{y:.4g}}<extra></extra>",
        }
        for name, colour, dash, side, values in curves
    ]
    layout = frame(height=360) | {
        "hovermode": "x unified",
        "xaxis": axis("epoch"),
        "yaxis": axis("loss", rangemode="tozero"),
        "yaxis2": axis("accuracy", overlaying="y", side="right", tickformat=".0%", showgrid=False),
    }
    return {"data": traces, "layout": layout}
