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

FIELDS, CHUNK, COLUMNS = (int(map_.value) for map_ in (kernels.FIELDS, kernels.CHUNK, kernels.COLUMNS))

MAX_GROUPED_ELEMENTS = 1 << 20
"""Elements up to which a map joins a launch with others, whatever its layout: its own launch would cost more."""

assert WORDS == 8, "the kernels' words"


@dataclass(frozen=True)
class CountedMap:
    """A map ``(images, channels, pixels)`` and the destination of its counts: int64 ``(iterations, WORDS)``.

    With ``relu_to``, a tensor of the same shape and dtype or the map itself, the ReLU of the map is written there and
    counted.
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
        """Programs per column tile, each for a chunk of its rows."""
        return -(-self.rows // CHUNK)

    @property
    def tiles(self) -> int:
        """Column tiles."""
        return -(-self.columns // COLUMNS)

    @property
    def programs(self) -> int:
        """Programs that count the map."""
        return self.chunks * self.tiles

    @property
    def partial_counts(self) -> int:
        """Column counts exchanged in scratch."""
        return self.chunks * self.columns if self.chunks > 1 else 0

    @property
    def channels_last(self) -> bool:
        """Whether channels are contiguous in memory, and read as such."""
        contiguous = all(x.stride(1) == 1 for x in _operands(self))
        return contiguous and self.columns > 1 and self.matrices.numel() > MAX_GROUPED_ELEMENTS

    def check(self) -> None:
        """Check that the kernel can read the map.

        Raises:
            MissingError: the map is not on a GPU, and kernels are not interpreted.
            UnsupportedError: its type is not one of :data:`DTYPES`.
        """
        check_kernel_operand(self.matrices, "monitor", "count it with reference.count", tuple(DTYPES))


class CountPlan:
    """The launches that count maps: one for all maps of a dtype and layout. It holds no reference to the maps.

    Launches can be captured in a CUDA graph. The plan and the maps then have to stay allocated; every replay counts
    again.

    Args:
        maps: non-empty maps on one device, all with the same number of iterations.
        pinned: memory for the table of one iteration ``(maps, FIELDS)``, int64, which a capture needs.

    Raises:
        MissingError, UnsupportedError: as :meth:`CountedMap.check`.
    """

    def __init__(self, maps: Sequence[CountedMap], pinned: Tensor | None = None):
        for map_ in maps:
            map_.check()
        device = maps[0].matrices.device
        # Maps of few programs first, which balances the tail of the launch.
        self._order = sorted(range(len(maps)), key=lambda index: (_group_key(maps[index]), maps[index].programs))
        ordered = [maps[index] for index in self._order]
        # Accumulators and arrival counters, zero between launches, and column counts of chunks of rows.
        self._sums = torch.zeros((len(maps), WORDS), dtype=torch.int64, device=device)
        self._arrivals = torch.zeros(sum(map_.rows + map_.tiles for map_ in maps), dtype=torch.int32, device=device)
        self._scratch = torch.empty(1 + sum(map_.partial_counts for map_ in maps), dtype=torch.int16, device=device)
        turns = len(maps[0].words) if pinned is None else 1
        rows = torch.tensor([*self._table_rows(ordered)], dtype=torch.int64, device="cpu")
        self._rows = rows.repeat(turns, 1, 1)
        strides = torch.tensor([map_.words.stride(0) * map_.words.itemsize for map_ in ordered], device="cpu")
        self._rows[:, :, 2] += torch.arange(turns, device="cpu")[:, None] * strides
        self._pinned = self._rows if pinned is None else pinned[: len(maps)].copy_(rows)[None]
        self._table = torch.empty_like(self._rows, device=device)
        self._pointers = _addresses(maps, 0), _addresses(maps, -1)
        self._send()
        self._launches: list[_Launch] = []
        first = 0
        for _, group in groupby(ordered, _group_key):
            members = [*group]
            programs = sum(map_.programs for map_ in members)
            table = self._table[:, first:]
            self._launches.append(_Launch(programs, table, self._scratch, len(members), _constexprs(members)))
            first += len(members)

    def _table_rows(self, maps: Sequence[CountedMap]) -> Iterator[list[int]]:
        """The rows of the table."""
        active, partial_counts = self._arrivals.data_ptr(), 0
        for _, group in groupby(zip(maps, self._sums, strict=True), lambda pair: _group_key(pair[0])):
            programs = 0
            for map_, sums in group:
                x, y = _operands(map_)[0], _operands(map_)[-1]
                turns = active + 4 * map_.rows
                yield [
                    x.data_ptr(), y.data_ptr(), map_.words.data_ptr(), sums.data_ptr(), active, turns,
                    map_.rows, map_.columns, x.shape[2], *x.stride(), *y.stride(),
                    map_.chunks, partial_counts, programs, map_.programs, 0,
                ]  # fmt: skip
                active = turns + 4 * map_.tiles
                partial_counts += map_.partial_counts
                programs += map_.programs

    def move(self, read: list[int], written: list[int]) -> None:
        """Count maps of the same layout at other addresses, and write their ReLU to others."""
        if (read, written) != self._pointers:
            self._pointers = read, written
            self._rows.numpy()[:, :, :2] = [(read[index], written[index]) for index in self._order]
            self._send()

    def _send(self) -> None:
        # A copy from pageable memory has read it when the call returns; it does not synchronize otherwise.
        self._table.copy_(self._pinned, non_blocking=True)

    def launch(self, turn: int = 0) -> None:
        """Count, in stream order, to the destination of an iteration of the batch."""
        for map_ in self._launches:
            map_(turn)


class _Launch:
    """A repeated launch of the counting kernel: everything but its stream is resolved once."""

    def __init__(self, programs: int, tables: Tensor, scratch: Tensor, maps: int, constexprs: dict[str, Any]):
        self._programs, self._tables, self._fixed = programs, tables, (scratch, maps)
        self._constexprs = constexprs | {"MAPS": next_power_of_2(maps)}
        self._cached: tuple[Callable[..., None], list[int], list[Any]] | None = None

    def __call__(self, turn: int) -> None:
        if self._cached is not None and torch.cuda.current_device() == self._tables.device.index:
            run, tables, arguments = self._cached
            run(tables[turn], *arguments)
            return
        kernel, table = kernels.count_kernel, self._tables[turn]
        launch(kernel, self._programs, table, table, *self._fixed, **self._constexprs)
        if not INTERPRETED and not torch.cuda.is_current_stream_capturing():
            with torch.cuda.device_of(table):
                compiled = kernel.warmup(table, *self._fixed, grid=(self._programs,), **self._constexprs)
            scratch, maps = self._fixed
            constants = [self._constexprs[name] for name in kernel.arg_names[1 + len(self._fixed) :]]
            arguments = [scratch.data_ptr(), maps, *constants]
            self._cached = compiled[self._programs, 1, 1], [map_.data_ptr() for map_ in self._tables], arguments


def _constexprs(maps: Sequence[CountedMap]) -> dict[str, Any]:
    """The constexprs of the kernel for maps of one dtype and layout."""
    size = max(max(reach(x), map_.columns + COLUMNS) for map_ in maps for x in _operands(map_))
    return {
        "DTYPE": DTYPES[maps[0].matrices.dtype],
        "RELU": maps[0].relu_to is not None,
        "CHANNELS_LAST": maps[0].channels_last,
        "INDEX": tl.int64 if size >= 2**31 else tl.int32,
    }


def table(maps: int, device: torch.device) -> Tensor:
    """Pinned host memory for the tables of maps."""
    return torch.empty((maps, FIELDS), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")


def _group_key(counted: CountedMap) -> tuple[Any, ...]:
    return str(counted.matrices.dtype), counted.relu_to is not None, counted.channels_last


def _addresses(maps: Sequence[CountedMap], end: int) -> list[int]:
    """Addresses of the maps (``end`` 0), or of their ReLU outputs if they have any (``end`` -1)."""
    return [_operands(map_)[end].data_ptr() for map_ in maps]


def _operands(counted: CountedMap) -> list[Tensor]:
    return [counted.matrices] if counted.relu_to is None else [counted.matrices, counted.relu_to]
