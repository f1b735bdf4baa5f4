"""Conclusions drawn: tables for the terminal here; ``html`` and ``png`` load their plotting libraries when
imported."""

from lamina.report.table import (
    diff_table,
    epochs_table,
    layer_table,
    network_table,
    published_table,
    runs_table,
)

__all__ = [
    "diff_table",
    "epochs_table",
    "layer_table",
    "network_table",
    "published_table",
    "runs_table",
]
