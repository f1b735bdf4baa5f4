"""The order of a product's summed elements, as a kernel looks it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

WIDEST = 16
"""Bytes of the widest load of one thread; a run of neighbours longer than that gains nothing."""


@dataclass(frozen=True)
class Prefixes:
    """Channels in the order of how many taps keep them, and how many of the first each tap reads."""

    order: tuple[int, ...]
    counts: tuple[int, ...]

    def places(self) -> list[int]:
        """Inputs by tap that stay, ``channel * taps + tap``, tap after tap: each tap's channels are a prefix."""
        taps = len(self.counts)
        return [channel * taps + tap for tap, count in enumerate(self.counts) for channel in self.order[:count]]


def tap_prefixes(places: Sequence[int], channels: int, taps: int, align: int = 1) -> Prefixes:
    """The nearest choice in which every tap reads a prefix of one order of channels.

    Each tap keeps as many channels as before, rounded up to ``align``: those that the most taps keep.
    """
    kept = [[False] * taps for _ in range(channels)]
    for place in places:
        kept[place // taps][place % taps] = True
    order = sorted(range(channels), key=lambda channel: (-sum(kept[channel]), channel))
    wanted = [sum(row[tap] for row in kept) for tap in range(taps)]
    return Prefixes(tuple(order), tuple(min(channels, -(-count // align) * align) for count in wanted))


def columns_of(index: Tensor, taps: int, *, tap_major: bool) -> Tensor:
    """The table of a choice by channel: ``channel * taps + tap`` for each column, taps or channels outermost."""
    every = torch.arange(taps, device=index.device)
    table = index[None, :] * taps + every[:, None]
    return (table if tap_major else table.mT).flatten().int()


def longest_run(places: Sequence[int], *, stride: int = 1) -> int:
    """The largest power of two in whose aligned runs of neighbours a table comes; 1 where it has none.

    Args:
        places: the table.
        stride: by how much neighbours differ.
    """
    run = 1
    while 2 * run <= WIDEST and len(places) % (2 * run) == 0:
        wider = range(0, len(places), 2 * run)
        if any((places[k] // stride) % (2 * run) for k in wider):
            break
        if any(places[k + i] != places[k] + i * stride for k in wider for i in range(2 * run)):
            break
        run *= 2
    return run
