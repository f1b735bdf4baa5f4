"""Statements of papers, checked against the rows of a benchmark, for its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lamina.pipeline.reproduce.measured import measurement
from lamina.pipeline.reproduce.measured.judging import judge
from lamina.spec.published import entries


def statements(measures: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each statement of the entries with this measurement; ``holds`` is None if rows are not sufficient."""
    return [
        {"entry": one.id, "about": row.value.layer, "says": row.value.value, "ours": row.ours, "holds": row.agrees}
        for one in entries()
        if one.measures == measures
        for row in judge(one.model_copy(update={"values": ()}), measurement(measures), rows)
    ]
