"""``report``: a stored run as a page, with what can be concluded from it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lamina import explain
from lamina.report.html import write_report
from lamina.store import Store


def write(store: Store, run_id: str, path: Path, assets: Literal["inline", "dir"] = "inline") -> Path:
    """Write the report of a run and answer where it is.

    Args:
        run_id: a run's id, its unique beginning, or ``latest``.
        assets: ``inline`` for one self-contained file, ``dir`` to keep the plotting library beside it.
    """
    this = store.run(run_id)
    rows = store.layers(this.id)
    roofs = next(iter(store.roofs(this.id)), None)
    return write_report(
        path,
        this,
        rows,
        roofs,
        explain.findings(rows, roofs),
        explain.rooflines(rows, roofs),
        explain.shares(rows),
        store.epochs(this.id),
        assets,
    )
