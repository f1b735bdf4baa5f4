"""The calculator: counts activation maps on their device and brings the counts to the host, without waiting for them.

Counts of one iteration are copied into a slot of pinned memory, and after them a flag. Copies of one stream are done
in their order, so a flag that the host sees set vouches for the counts. The host looks at the flags when it comes by;
slots that were read are used again, and there are never fewer than are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from lamina.accelerate.sparsity.monitor.observation import WORDS, Observation
from lamina.accelerate.sparsity.monitor.reference import count
from lamina.errors import LaminaError, MissingError, UsageError

if TYPE_CHECKING:
    from lamina.accelerate.sparsity.monitor.ops import Pass

Impl = Literal["auto", "torch", "triton"]
"""Who counts: the kernel, PyTorch's operators, or the kernel where maps are on a GPU."""

BLOCK = 64
"""Maps whose counts are copied together."""


@dataclass(frozen=True)
class Ticket:
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
        self._passes: dict[tuple[int, int], Pass] = {}
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
        if self._device is None:
            self._device = matrices.device
            self._done = torch.ones(1, dtype=torch.int64, device=self._device)
        if matrices.device != self._device:
            raise UsageError(
                f"monitor: expected all maps on {self._device}, got {name} on {matrices.device}; "
                "use one monitor for each device"
            )
        row = self._rows.setdefault(name, len(self._rows))
        if row // BLOCK == len(self._blocks):
            self._blocks.append(torch.zeros((BLOCK, WORDS), dtype=torch.int64, device=self._device))
        words = self._blocks[row // BLOCK][row % BLOCK]
        if self.by_kernel(matrices):
            self._pass(row, matrices).launch(matrices, words, relu_to)
        else:
            words.copy_(count(matrices))
        return row

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
            words = [row for block in slot.words for row in block.tolist()]
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

    def _pass(self, row: int, matrices: Tensor) -> Pass:
        key = (row, matrices.shape[1])
        if key not in self._passes:
            try:
                from lamina.accelerate.sparsity.monitor.ops import Pass
            except ImportError as error:
                raise MissingError(
                    'monitor: expected Triton for its kernel; install lamina[kernels], or use impl="torch"'
                ) from error
            self._passes[key] = Pass(matrices.shape[1], matrices.device)
        return self._passes[key]

    def _host(self, *shape: int) -> Tensor:
        on_gpu = self._device is not None and self._device.type == "cuda"
        return torch.zeros(shape, dtype=torch.int64, pin_memory=on_gpu)
