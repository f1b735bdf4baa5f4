"""Rungs of a benchmark ladder: patches of modules, and summaries of the measured times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.circulant_layers import REPEAT
from lamina import measure
from lamina.accelerate.runtime import launch_cache
from lamina.record import Timing

Time = Callable[[Callable[[], object]], Timing]

Changes = tuple[tuple[Any, Mapping[str, Any]], ...]
"""Modules, and the attributes that are replaced in them."""


@contextmanager
def changed(changes: Changes) -> Iterator[None]:
    """Apply a rung's changes within the context. Launch plans were recorded without them, so they are cleared."""
    with ExitStack() as stack:
        for of, names in changes:
            stack.enter_context(patch.multiple(of, **names))
        stack.callback(launch_cache.clear)
        launch_cache.clear()
        yield


@contextmanager
def cold_graphs(device: torch.device) -> Iterator[tuple[Time, float]]:
    """What times calls in CUDA graphs with operands that are not in L2, and the bandwidth of copies in GB/s."""
    clock = measure.GraphClock(device)
    with torch.cuda.stream(clock.stream):
        yield partial(clock.time, l2="cold", repeat=REPEAT), measure.measure_roofs(device).copy_gbs


def beside_predictions(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, dict[str, float]]:
    """Microseconds of all rungs beside what was predicted of them, by what ``columns`` say."""
    summary: dict[str, dict[str, float]] = {}
    for row in rows:
        times = summary.setdefault(f"{' '.join(row[column] for column in columns)}, us", {})
        times["predicted"] = round(row["predicted_us"], 1)
        times[row["impl"]] = round(row["median_us"], 1)
    return summary
