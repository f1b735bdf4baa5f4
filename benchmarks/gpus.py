"""Work that is spread over all GPUs, each piece alone on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Piece = TypeVar("Piece")
Rows = list[dict[str, Any]]


def on_every_gpu(work: Callable[[Piece], Rows], pieces: Sequence[Piece]) -> Iterator[Rows]:
    """Whenever a piece is done, the rows of all that are, in the order of the pieces.

    There is one process on each GPU, which takes the next piece when it is free; ``work`` finds its GPU as the current
    one. Without a GPU all is done here.
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
    """Rows, of which some columns are printed while they come."""
    kept = []
    for row in rows:
        kept.append(row)
        print(*(row[column] for column in columns), flush=True)
    return kept


def _take(devices: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(devices.get())
