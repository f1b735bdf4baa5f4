"""Launching the pass over activation maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamina.accelerate.ops import check_device
from lamina.accelerate.sparsity.launches import launch
from lamina.accelerate.sparsity.monitor import kernels
from lamina.accelerate.sparsity.monitor.observation import WORDS
from lamina.accelerate.tiling import power

DTYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

FIELDS, CHUNK, COLUMNS, SPAN = (
    int(each.value) for each in (kernels.FIELDS, kernels.CHUNK, kernels.COLUMNS, kernels.SPAN)
)
LIVING = 1024
"""Rows that one program looks at together for whether they are alive."""

assert WORDS == 8, "the kernels' words"


@dataclass(frozen=True)
class Counted:
    """A map ``(images, channels, pixels)`` and where its counts go: int64 ``(WORDS,)``, and int32, one a channel.

    With ``relu_to``, of the map's shape and type or the map itself, ReLU of the map is written there and counted.
    """

    matrices: Tensor
    words: Tensor
    alive: Tensor
    relu_to: Tensor | None = None

    @property
    def rows(self) -> int:
        """Channels."""
        return self.matrices.shape[1]

    @property
    def columns(self) -> int:
        """Pixels of all images."""
        return self.matrices.shape[0] * self.matrices.shape[2]

    @property
    def chunks(self) -> int:
        """Programs that share the rows of a column."""
        return -(-self.rows // CHUNK)

    @property
    def last(self) -> bool:
        """Whether channels are neighbours in memory."""
        return all(x.stride(1) == 1 for x in _operands(self)) and self.columns > 1

    def check(self) -> None:
        """Refuse what the kernel cannot read.

        Raises:
            MissingError: the map is not on a GPU, and kernels are not interpreted.
            UnsupportedError: its type is not one of :data:`DTYPES`.
        """
        check_device(self.matrices, "monitor", "count it with reference.count", tuple(DTYPES))


class Plan:
    """The launches that count maps, wherever they are; it does not keep them.

    Launches may be captured in a CUDA graph, with the plan, which then has to stay, and the maps where they are; every
    replay counts anew.

    Args:
        maps: what to count, on one device, none of them empty.
        pinned: memory for the tables ``(maps, FIELDS)``, int64, which a capture needs.

    Raises:
        MissingError, UnsupportedError: as :meth:`Counted.check`.
    """

    def __init__(self, maps: Sequence[Counted], pinned: Tensor | None = None):
        for each in maps:
            each.check()
        self._order = sorted(range(len(maps)), key=lambda index: _kind(maps[index]))
        self._places = [_addresses(each) for each in maps]
        self._device = maps[0].matrices.device
        rows: list[list[int]] = []
        # Of the maps of each type: the first of them, how many they are, the programs that count them, and how.
        self._groups: list[tuple[int, int, int, dict[str, Any]]] = []
        self._blocks = self._handed_on = 0
        for _, alike in groupby((maps[index] for index in self._order), _kind):
            some = [*alike]
            first, tiles = len(rows), 0
            for each in some:
                rows.append(self._row(each, tiles))
                tiles += each.chunks * triton.cdiv(each.columns, COLUMNS)
            self._groups.append((first, len(some), tiles, _switches(some)))
        self._rows = torch.tensor(rows, dtype=torch.int64, device="cpu")
        self._pinned = self._rows if pinned is None else pinned[: len(rows)].copy_(self._rows)
        self._send()

    def _row(self, each: Counted, tiles: int) -> list[int]:
        """A map's row of the table."""
        x, y = _operands(each)[0], _operands(each)[-1]
        shape = [each.rows, each.columns, x.shape[2]]
        addresses = [*_addresses(each), each.words.data_ptr(), each.alive.data_ptr()]
        row = [*addresses, *shape, *x.stride(), *y.stride(), each.chunks, self._handed_on, tiles, self._blocks, 0]
        if each.chunks > 1:
            self._blocks += triton.cdiv(each.columns, SPAN)
            self._handed_on += each.chunks * each.columns
        else:
            self._blocks += 1
        return row

    def move(self, places: list[list[int]]) -> None:
        """Count maps of the same sizes, strides and types at other addresses: of each, and of what is written."""
        if places != self._places:
            self._places = places
            self._rows.numpy()[:, :2] = [places[index] for index in self._order]
            self._send()

    def _send(self) -> None:
        # A copy from memory that is not pinned has read it when the call returns, and waits for nothing else.
        self._table = self._pinned.to(self._device, non_blocking=True, copy=True)

    def launch(self) -> None:
        """Count, behind all that the stream has to do."""
        at, n = self._table, len(self._order)
        # Stream-ordered, so it may be another's as soon as these launches are queued.
        scratch = torch.empty(max(self._handed_on, 1), dtype=torch.int16, device=at.device)
        launch(kernels.clear_kernel, n, at, at, ROWS=LIVING)
        for first, some, tiles, switches in self._groups:
            launch(kernels.count_kernel, tiles, at, at[first:], scratch, some, MAPS=power(some), **switches)
        launch(kernels.finish_kernel, self._blocks, at, at, scratch, n, MAPS=power(n), ROWS=LIVING)


def _switches(maps: Sequence[Counted]) -> dict[str, Any]:
    """What the kernel is compiled for, to count maps of one type."""
    reach = max(max(_span(x), each.columns + COLUMNS) for each in maps for x in _operands(each))
    return {
        "DTYPE": DTYPES[maps[0].matrices.dtype],
        "RELU": maps[0].relu_to is not None,
        "LAST": maps[0].last,
        "INDEX": tl.int64 if reach >= 2**31 else tl.int32,
    }


def table(maps: int, device: torch.device) -> Tensor:
    """Memory of the host for the tables of some maps."""
    return torch.empty((maps, FIELDS), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")


def _kind(counted: Counted) -> tuple[Any, ...]:
    return str(counted.matrices.dtype), counted.relu_to is not None, counted.last


def _addresses(counted: Counted) -> list[int]:
    """Where a map is read, and where its ReLU is written, which is there too if it is not."""
    return [_operands(counted)[end].data_ptr() for end in (0, -1)]


def _operands(counted: Counted) -> list[Tensor]:
    return [counted.matrices] if counted.relu_to is None else [counted.matrices, counted.relu_to]


def _span(x: Tensor) -> int:
    """One more than the largest offset within a tensor."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
