"""Launching the pass over activation maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from lamina.accelerate.common.tiling import next_power_of_2
from lamina.accelerate.runtime.launch import launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED, check_kernel_operand, reach
from lamina.accelerate.training.sparsity_monitor import kernels
from lamina.accelerate.training.sparsity_monitor.observation import WORDS

DTYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

FIELDS, CHUNK, COLUMNS = (int(each.value) for each in (kernels.FIELDS, kernels.CHUNK, kernels.COLUMNS))

FEW = 1 << 20
"""Elements up to which a map goes with others in a launch, however it lies: a launch of its own costs more."""

assert WORDS == 8, "the kernels' words"


@dataclass(frozen=True)
class Counted:
    """A map ``(images, channels, pixels)`` and where its counts go: int64 ``(turns, WORDS)``, in each turn to another.

    With ``relu_to``, of the map's shape and type or the map itself, ReLU of the map is written there and counted.
    """

    matrices: Tensor
    words: Tensor
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
    def tiles(self) -> int:
        """Programs that have columns of their own."""
        return -(-self.columns // COLUMNS)

    @property
    def programs(self) -> int:
        """All that count it."""
        return self.chunks * self.tiles

    @property
    def handed_on(self) -> int:
        """Counts of columns that programs hand on."""
        return self.chunks * self.columns if self.chunks > 1 else 0

    @property
    def last(self) -> bool:
        """Whether to read along channels, as neighbours in memory."""
        return all(x.stride(1) == 1 for x in _operands(self)) and self.columns > 1 and self.matrices.numel() > FEW

    def check(self) -> None:
        """Refuse what the kernel cannot read.

        Raises:
            MissingError: the map is not on a GPU, and kernels are not interpreted.
            UnsupportedError: its type is not one of :data:`DTYPES`.
        """
        check_kernel_operand(self.matrices, "monitor", "count it with reference.count", tuple(DTYPES))


class Plan:
    """The launches that count maps, wherever they are: one for all maps of a type. It does not keep the maps.

    Launches may be captured in a CUDA graph, with the plan, which then has to stay, and the maps where they are; every
    replay counts anew.

    Args:
        maps: what to count, on one device, none of them empty, all with as many turns.
        pinned: memory for the table of one turn ``(maps, FIELDS)``, int64, which a capture needs.

    Raises:
        MissingError, UnsupportedError: as :meth:`Counted.check`.
    """

    def __init__(self, maps: Sequence[Counted], pinned: Tensor | None = None):
        for each in maps:
            each.check()
        device = maps[0].matrices.device
        # Of a kind those of few programs first, so that none of them is left over when the others are done.
        self._order = sorted(range(len(maps)), key=lambda index: (_kind(maps[index]), maps[index].programs))
        ordered = [maps[index] for index in self._order]
        # What programs add up and how many have come, zero between launches, and what columns have in chunks of rows.
        self._sums = torch.zeros((len(maps), WORDS), dtype=torch.int64, device=device)
        self._turns = torch.zeros(sum(each.rows + each.tiles for each in maps), dtype=torch.int32, device=device)
        self._scratch = torch.empty(1 + sum(each.handed_on for each in maps), dtype=torch.int16, device=device)
        turns = len(maps[0].words) if pinned is None else 1
        rows = torch.tensor([*self._described(ordered)], dtype=torch.int64, device="cpu")
        self._rows = rows.repeat(turns, 1, 1)
        steps = torch.tensor([each.words.stride(0) * each.words.itemsize for each in ordered], device="cpu")
        self._rows[:, :, 2] += torch.arange(turns, device="cpu")[:, None] * steps
        self._pinned = self._rows if pinned is None else pinned[: len(maps)].copy_(rows)[None]
        self._table = torch.empty_like(self._rows, device=device)
        self._places = _addresses(maps, 0), _addresses(maps, -1)
        self._send()
        self._launches: list[_Launch] = []
        first = 0
        for _, alike in groupby(ordered, _kind):
            some = [*alike]
            programs = sum(each.programs for each in some)
            self._launches.append(_Launch(programs, self._table[:, first:], self._scratch, len(some), _switches(some)))
            first += len(some)

    def _described(self, maps: Sequence[Counted]) -> Iterator[list[int]]:
        """The rows of the table."""
        alive, handed_on = self._turns.data_ptr(), 0
        for _, alike in groupby(zip(maps, self._sums, strict=True), lambda pair: _kind(pair[0])):
            programs = 0
            for each, sums in alike:
                x, y = _operands(each)[0], _operands(each)[-1]
                turns = alive + 4 * each.rows
                yield [
                    x.data_ptr(), y.data_ptr(), each.words.data_ptr(), sums.data_ptr(), alive, turns,
                    each.rows, each.columns, x.shape[2], *x.stride(), *y.stride(),
                    each.chunks, handed_on, programs, each.programs, 0,
                ]  # fmt: skip
                alive = turns + 4 * each.tiles
                handed_on += each.handed_on
                programs += each.programs

    def move(self, read: list[int], written: list[int]) -> None:
        """Count maps of the same sizes, strides and types at other addresses, and write ReLU of them at others."""
        if (read, written) != self._places:
            self._places = read, written
            self._rows.numpy()[:, :, :2] = [(read[index], written[index]) for index in self._order]
            self._send()

    def _send(self) -> None:
        # A copy from memory that is not pinned has read it when the call returns, and waits for nothing else.
        self._table.copy_(self._pinned, non_blocking=True)

    def launch(self, turn: int = 0) -> None:
        """Count, behind all that the stream has to do, to where the counts of a turn go."""
        for each in self._launches:
            each(turn)


class _Launch:
    """A launch of the counting kernel that is made again and again: all but its stream is found once."""

    def __init__(self, programs: int, tables: Tensor, scratch: Tensor, maps: int, switches: dict[str, Any]):
        self._programs, self._tables, self._given = programs, tables, (scratch, maps)
        self._switches = switches | {"MAPS": next_power_of_2(maps)}
        self._found: tuple[Callable[..., None], list[int], list[Any]] | None = None

    def __call__(self, turn: int) -> None:
        if self._found is not None and torch.cuda.current_device() == self._tables.device.index:
            run, tables, arguments = self._found
            run(tables[turn], *arguments)
            return
        kernel, table = kernels.count_kernel, self._tables[turn]
        launch(kernel, self._programs, table, table, *self._given, **self._switches)
        if not INTERPRETED and not torch.cuda.is_current_stream_capturing():
            with torch.cuda.device_of(table):
                compiled = kernel.warmup(table, *self._given, grid=(self._programs,), **self._switches)
            scratch, maps = self._given
            constants = [self._switches[name] for name in kernel.arg_names[1 + len(self._given) :]]
            arguments = [scratch.data_ptr(), maps, *constants]
            self._found = compiled[self._programs, 1, 1], [each.data_ptr() for each in self._tables], arguments


def _switches(maps: Sequence[Counted]) -> dict[str, Any]:
    """What the kernel is compiled for, to count maps of one type."""
    size = max(max(reach(x), each.columns + COLUMNS) for each in maps for x in _operands(each))
    return {
        "DTYPE": DTYPES[maps[0].matrices.dtype],
        "RELU": maps[0].relu_to is not None,
        "LAST": maps[0].last,
        "INDEX": tl.int64 if size >= 2**31 else tl.int32,
    }


def table(maps: int, device: torch.device) -> Tensor:
    """Memory of the host for the tables of some maps."""
    return torch.empty((maps, FIELDS), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")


def _kind(counted: Counted) -> tuple[Any, ...]:
    return str(counted.matrices.dtype), counted.relu_to is not None, counted.last


def _addresses(maps: Sequence[Counted], end: int) -> list[int]:
    """Where maps are read, 0, or where ReLU of them is written, -1: there too if it is not."""
    return [_operands(each)[end].data_ptr() for each in maps]


def _operands(counted: Counted) -> list[Tensor]:
    return [counted.matrices] if counted.relu_to is None else [counted.matrices, counted.relu_to]
