"""What ladders tell of their rungs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def beside_predictions(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, dict[str, float]]:
    """Microseconds of all rungs beside what was predicted of them, by what ``columns`` say."""
    summary: dict[str, dict[str, float]] = {}
    for row in rows:
        told = summary.setdefault(f"{' '.join(row[column] for column in columns)}, us", {})
        told["predicted"] = round(row["predicted_us"], 1)
        told[row["impl"]] = round(row["median_us"], 1)
    return summary
