"""Distribution of work items over all GPUs, one item per GPU at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Piece = TypeVar("Piece")
Rows = list[dict[str, Any]]


def on_every_gpu(work: Callable[[Piece], Rows], pieces: Sequence[Piece]) -> Iterator[Rows]:
    """After each finished item, yield the rows of all finished items, in the order of the items.

    There is one process per GPU, which takes the next item when it is idle; its GPU is the current device of ``work``.
    Without a GPU, all items run in this process.
    """
    done: dict[int, Rows] = {}
    count = torch.cuda.device_count()
    if not count:
        for place, piece in enumerate(pieces):
            done[place] = work(piece)
            yield [row for rows in done.values() for row in rows]
        return
    context = get_context("spawn")
    devices = context.SimpleQueue()
    for index in range(count):
        devices.put(index)
    with ProcessPoolExecutor(count, context, _take, (devices,)) as pool:
        places = {pool.submit(work, piece): place for place, piece in enumerate(pieces)}
        for future in as_completed(places):
            done[places[future]] = future.result()
            yield [row for place in sorted(done) for row in done[place]]


def shown(rows: Iterator[dict[str, Any]], columns: Sequence[str]) -> Rows:
    """Rows, some columns of which are printed as they arrive."""
    kept = []
    for row in rows:
        kept.append(row)
        print(*(row[column] for column in columns), flush=True)
    return kept


def _take(devices: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(devices.get())
