"""Index tables: the order of a product's K elements for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_RUN = 16
"""Longest useful run: the elements in the widest load of one thread, 16 bytes, for 8-bit types."""


@dataclass(frozen=True)
class Prefixes:
    """Channels in one order, and the length of the prefix of it that each tap reads."""

    order: tuple[int, ...]
    counts: tuple[int, ...]

    def index(self) -> list[int]:
        """The remaining inputs by tap, ``channel * taps + tap``, tap after tap."""
        taps = len(self.counts)
        return [channel * taps + tap for tap, count in enumerate(self.counts) for channel in self.order[:count]]


def tap_prefixes(index: Sequence[int], channels: int, taps: int, align: int = 1) -> Prefixes:
    """The nearest index in which each tap reads a prefix of one order of channels, those that most taps keep first.

    Each tap keeps as many channels as before, rounded up to ``align``.
    """
    kept = [[False] * taps for _ in range(channels)]
    for each in index:
        kept[each // taps][each % taps] = True
    order = sorted(range(channels), key=lambda channel: (-sum(kept[channel]), channel))
    counts = [sum(row[tap] for row in kept) for tap in range(taps)]
    return Prefixes(tuple(order), tuple(min(channels, -(-count // align) * align) for count in counts))


def columns_of(index: Tensor, taps: int, *, tap_major: bool) -> Tensor:
    """The table of an index by channel: ``channel * taps + tap`` for each column, taps or channels outermost."""
    every = torch.arange(taps, device=index.device)
    table = index[None, :] * taps + every[:, None]
    return (table if tap_major else table.mT).flatten().int()


def longest_run(table: Sequence[int], *, stride: int = 1) -> int:
    """The largest power of two such that the table consists of aligned runs of consecutive inputs of this length.

    Args:
        table: the inputs.
        stride: difference of consecutive inputs.
    """
    run = 1
    while 2 * run <= MAX_RUN and len(table) % (2 * run) == 0:
        wider = range(0, len(table), 2 * run)
        if any((table[k] // stride) % (2 * run) for k in wider):
            break
        if any(table[k + i] != table[k] + i * stride for k in wider for i in range(2 * run)):
            break
        run *= 2
    return run
