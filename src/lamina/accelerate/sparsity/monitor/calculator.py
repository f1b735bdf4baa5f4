"""The calculator: counts activation maps on their device and brings the counts to the host, without waiting for them.

Counts of one iteration are copied into a slot of pinned memory, and after them a flag. Copies of one stream are done
in their order, so a flag that the host sees set vouches for the counts. The host looks at the flags when it comes by;
slots that were read are used again, and there are never fewer than are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.sparsity.monitor.observation import WORDS, Observation
from lamina.accelerate.sparsity.monitor.reference import as_matrices, count
from lamina.errors import LaminaError, MissingError, UsageError

if TYPE_CHECKING:
    from lamina.accelerate.sparsity.monitor.ops import Counted, Plan

Impl = Literal["auto", "torch", "triton"]
"""Who counts: the kernel, PyTorch's operators, or the kernel where maps are on a GPU."""

BLOCK = 64
"""Maps whose counts are copied together."""

SPARE = 256
"""Maps that fit into the memory that is kept for the tables of captured launches."""


class Ticket(NamedTuple):
    """Says what counts belong to: the map in row ``row`` of the counts, and the monitoring process that asked."""

    name: str
    row: int
    rows: int
    columns: int
    iteration: int
    process: int

    def read(self, words: Sequence[Sequence[int]]) -> Observation:
        """The observation that this ticket stands for."""
        return Observation.from_words(self.name, self.iteration, self.rows, self.columns, words[self.row])


@dataclass
class Slot:
    """Where the counts of one iteration arrive. ``flag`` is written after them."""

    flag: Tensor
    words: list[Tensor] = field(default_factory=list)
    tickets: tuple[Ticket, ...] = ()


class Calculator:
    """Counts the zeros of maps on one device.

    Args:
        impl: who counts.

    Raises:
        UsageError: ``impl`` is unknown.
    """

    def __init__(self, impl: Impl = "auto"):
        if impl not in ("auto", "torch", "triton"):
            raise UsageError(f"monitor: expected impl auto, torch or triton, got {impl!r}")
        self.impl = impl
        self._device: torch.device | None = None
        self._rows: dict[str, int] = {}
        self._alive: dict[tuple[int, int], Tensor] = {}
        # What maps are like, by their names, and how they are counted wherever they are.
        self._plans: dict[tuple[str, ...], tuple[list[Any], Plan]] = {}
        self._captured: list[Plan] = []
        self._spare: Tensor | None = None
        self._moved: set[str] = set()
        self._blocks: list[Tensor] = []
        self._done: Tensor | None = None
        self._free: list[Slot] = []
        self._under_way: deque[Slot] = deque()

    def knows(self, name: str) -> bool:
        """Whether a map has been counted before, so that its memory is there."""
        return name in self._rows

    @torch.no_grad()
    def count(self, name: str, matrices: Tensor, relu_to: Tensor | None = None) -> int:
        """Count a map ``(images, channels, pixels)`` behind all that its stream has to do; answer its row.

        With ``relu_to`` the map is ReLU of the matrices, and is written there: only where :meth:`by_kernel` is true.

        Raises:
            UsageError: the map is on another device than those before.
            MissingError: the kernel was asked for and is not here.
        """
        row = self._row(name, matrices.device)
        if self.by_kernel(matrices):
            places = [matrices.data_ptr(), matrices.data_ptr() if relu_to is None else relu_to.data_ptr()]
            written = None if relu_to is None else relu_to.stride()
            self._launch((name,), [_kind(matrices), written], lambda: [self._counted(row, matrices, relu_to)], [places])
        else:
            self._words(row).copy_(count(matrices))
        return row

    def can_wait(self, name: str, x: Tensor, channels: int) -> bool:
        """Whether a map may be counted with others later: the kernel counts it, and can read it where it lies."""
        if name in self._moved or not self.by_kernel(x):
            return False
        if x.is_contiguous():
            return x.ndim < 2 or channels % x.ndim in (1, x.ndim - 1)
        return x.ndim == 4 and channels == 1 and x.is_contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def count_together(self, maps: Mapping[str, tuple[Tensor, int]], channels: int) -> dict[str, tuple[int, Tensor]]:
        """Count maps as they came in one pass; answer their rows, and the maps.

        Only those for which :meth:`can_wait` is true. One that was changed in place since the version beside it is left
        out, and can no longer wait.
        """
        same = {name: x for name, (x, version) in maps.items() if x._version == version}
        self._moved.update(maps.keys() - same.keys())
        if not same:
            return {}
        rows = {name: (self._row(name, x.device), x) for name, x in same.items()}
        places = [[x.data_ptr()] * 2 for x in same.values()]
        self._launch(
            (*same,),
            [_kind(x) for x in same.values()],
            lambda: [self._counted(row, as_matrices(x, channels)) for row, x in rows.values()],
            places,
        )
        return rows

    def send(self, tickets: Sequence[Ticket]) -> None:
        """Begin to copy the last counts of all maps to the host; the tickets say which of them are wanted."""
        if not tickets or self._done is None:
            return
        slot = self._free.pop() if self._free else Slot(self._host(1))
        slot.flag.zero_()
        slot.tickets = tuple(tickets)
        while len(slot.words) < len(self._blocks):
            slot.words.append(self._host(BLOCK, WORDS))
        for there, here in zip(slot.words, self._blocks, strict=True):
            there.copy_(here, non_blocking=True)
        slot.flag.copy_(self._done, non_blocking=True)
        self._under_way.append(slot)

    def arrived(self) -> Iterator[tuple[Ticket, Observation]]:
        """What has arrived since last asked, in the order in which it was sent; never waits."""
        while self._under_way and self._under_way[0].flag.item():
            slot = self._under_way.popleft()
            used = 1 + max(ticket.row for ticket in slot.tickets)
            words = [row for at, block in enumerate(slot.words) for row in block[: max(used - at * BLOCK, 0)].tolist()]
            yield from ((ticket, ticket.read(words)) for ticket in slot.tickets)
            self._free.append(slot)

    def drain(self) -> list[tuple[Ticket, Observation]]:
        """Wait for all that was sent. Not for use within a training loop.

        Raises:
            LaminaError: something was sent on another stream than the current one.
        """
        if self._under_way and self._done is not None:
            self._done.cpu()  # copied behind everything that was sent
        found = [*self.arrived()]
        if self._under_way:
            raise LaminaError("monitor: counts are still under way on another stream: drain on the model's own stream")
        return found

    def by_kernel(self, matrices: Tensor) -> bool:
        """Whether the kernel counts this map."""
        if self.impl == "auto":
            return matrices.is_cuda and matrices.is_floating_point() and matrices.numel() > 0
        return self.impl == "triton"

    def _row(self, name: str, device: torch.device) -> int:
        """The row of a map's counts, new ones at the end."""
        if self._device is None:
            self._device = device
            self._done = torch.ones(1, dtype=torch.int64, device=device)
        if device != self._device:
            raise UsageError(
                f"monitor: expected all maps on {self._device}, got {name} on {device}; use one monitor for each device"
            )
        row = self._rows.setdefault(name, len(self._rows))
        if row // BLOCK == len(self._blocks):
            self._blocks.append(torch.zeros((BLOCK, WORDS), dtype=torch.int64, device=device))
        return row

    def _words(self, row: int) -> Tensor:
        return self._blocks[row // BLOCK][row % BLOCK]

    def _counted(self, row: int, matrices: Tensor, relu_to: Tensor | None = None) -> Counted:
        rows = matrices.shape[1]
        if (row, rows) not in self._alive:
            self._alive[row, rows] = torch.zeros(rows, dtype=torch.int32, device=matrices.device)
        counted: Counted = _kernels().Counted(matrices, self._words(row), self._alive[row, rows], relu_to)
        return counted

    def _launch(
        self, names: tuple[str, ...], kinds: list[Any], maps: Callable[[], list[Counted]], places: list[list[int]]
    ) -> None:
        """Count maps that are like this and at these places; the plan for the like of them may be there already."""
        ops = _kernels()
        if capturing():
            assert self._spare is not None, "memory that a launch before this one made"
            mine, self._spare = self._spare[: len(names)], self._spare[len(names) :]
            self._captured.append(plan := ops.Plan(maps(), mine))
        else:
            before = self._plans.get(names)
            if before and before[0] == kinds:
                plan = before[1]
                plan.move(places)
            else:
                plan = ops.Plan(maps())
                self._plans[names] = kinds, plan
            if self._device is not None and (self._spare is None or len(self._spare) < len(self._rows)):
                self._spare = ops.table(max(SPARE, 2 * len(self._rows)), self._device)
        plan.launch()

    def _host(self, *shape: int) -> Tensor:
        on_gpu = self._device is not None and self._device.type == "cuda"
        return torch.zeros(shape, dtype=torch.int64, device="cpu", pin_memory=on_gpu)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _kind(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype


def _kernels() -> ModuleType:
    try:
        from lamina.accelerate.sparsity.monitor import ops
    except ImportError as error:
        raise MissingError(
            'monitor: expected Triton for its kernel; install lamina[kernels], or use impl="torch"'
        ) from error
    return ops
