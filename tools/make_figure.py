"""The README's figure, from the newest results of benchmarks/alexnet_layers.py.

Run: python tools/make_figure.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lamina.record import LayerRun, Timing
from lamina.report.png import figure_png

ROOT = Path(__file__).parents[1]


def layer_run(place: int, row: dict[str, Any], device: str) -> LayerRun:
    """A row of a results file as the record it was made from, as far as a figure needs it."""
    timing = Timing(row["timing"], row["l2"], row["median_us"], row["q1_us"], row["q3_us"], row["n"])
    return LayerRun(
        layer=row["layer"],
        kind="",
        place=place,
        phase=row["phase"],
        impl=row["impl"],
        precision=row["precision"],
        layout=row["layout"],
        batch=row["batch"],
        device=device,
        inputs=(),
        output=(),
        parameters=0,
        flops=None,
        bytes=None,
        outcome="ok",
        timing=timing,
    )


def main() -> None:
    """Draw the bf16 step, layer by layer."""
    newest = max((ROOT / "benchmarks" / "results").glob("alexnet_layers_*.json"))
    document = json.loads(newest.read_text(encoding="utf-8"))
    device = document["provenance"]["device"]
    wanted = [
        row
        for row in document["rows"]
        if (row["timing"], row["l2"], row["precision"]) == ("cupti", "warm", "bf16") and row["phase"] != "step"
    ]
    # The walk visits the last layer first.
    order = list(dict.fromkeys(row["layer"] for row in reversed(wanted)))
    rows = [layer_run(order.index(row["layer"]), row, device) for row in wanted]
    rows.sort(key=lambda row: row.place)
    figure_png(rows, ROOT / "docs" / "images" / "alexnet.png", f"AlexNet, batch {rows[0].batch}, bf16, {device}")


if __name__ == "__main__":
    main()
