"""The calculator: counts activation maps on their device and brings the counts to the host, without waiting for them.

Counts of one iteration, or of several, are copied into a slot of pinned memory, and after them a flag. Copies of one
stream are done in their order, so a flag that the host sees set vouches for the counts. The host looks at the flags
when it comes by; slots that were read are used again, and there are never fewer than are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from lamina.accelerate.training.sparsity_monitor.observation import WORDS, Observation
from lamina.accelerate.training.sparsity_monitor.reference import as_matrices, count
from lamina.errors import LaminaError, MissingError, UsageError

if TYPE_CHECKING:
    from lamina.accelerate.training.sparsity_monitor.ops import Counted, Plan

Impl = Literal["auto", "torch", "triton"]
"""Who counts: the kernel, PyTorch's operators, or the kernel where maps are on a GPU."""

BLOCK = 64
"""Maps whose counts are copied together."""

SPARE = 256
"""Maps that fit into the memory that is kept for the tables of captured launches."""

WORTH = 128 << 20
"""Bytes of a map from which on ReLU that counts is worth a launch and a step of autograd of its own."""


@dataclass(eq=False, slots=True)
class Known:
    """A map as it was when it was last seen: what is like it need not be looked at again.

    Attributes:
        row: of its counts.
        rows, columns: of its matrix.
        direct: the kernel counts it where it lies, so that it may be counted later, or as ReLU makes it.
    """

    name: str
    row: int
    rows: int
    columns: int
    direct: bool
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def is_like(self, x: Tensor) -> bool:
        """Whether a map differs in nothing but what it holds and where."""
        same = x.shape == self.shape and x.stride() == self.stride
        return same and x.dtype is self.dtype and x.device == self.device

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns


class Ticket(NamedTuple):
    """Says what counts of an iteration belong to: these maps, and for each the monitoring process that asked."""

    iteration: int
    maps: tuple[Known, ...]
    processes: tuple[int, ...]

    def sparsities(self, words: Sequence[int]) -> list[float]:
        """The share of zeros of each map."""
        return [1 - words[WORDS * known.row] / known.size for known in self.maps]

    def read(self, words: Sequence[int]) -> list[Observation]:
        """The observations that this ticket stands for."""
        return [
            Observation.from_words(
                known.name, self.iteration, known.rows, known.columns, words[WORDS * known.row :][:WORDS]
            )
            for known in self.maps
        ]


Arrival = tuple[Ticket, list[int]]
"""A ticket and the words of the rows that it has use for, one row after another."""


class Slot:
    """Where counts arrive.

    Args:
        memory: of the host, int64: a flag, which is written after the counts, and blocks of counts.
        turns: iterations that a block is for.

    Attributes:
        tickets: what the counts of each turn belong to.
    """

    def __init__(self, memory: Tensor, turns: int):
        self.flag = memory[:1]
        self.blocks = memory[1:].view(-1, turns, BLOCK, WORDS).unbind()
        self.tickets: list[Ticket] = []
        self._array = memory.numpy()

    def open(self, tickets: list[Ticket]) -> None:
        """Wait for the counts of these tickets."""
        self._array[0] = 0
        self.tickets = tickets

    def has_arrived(self) -> bool:
        """Whether the counts are there."""
        return bool(self._array[0])

    def read(self) -> Iterator[Arrival]:
        """Each ticket with the words of all rows up to the last that it has use for."""
        blocks = [block.numpy() for block in self.blocks]
        for turn, ticket in enumerate(self.tickets):
            used = 1 + max([known.row for known in ticket.maps])
            words: list[int] = []
            for block in blocks[: 1 + (used - 1) // BLOCK]:
                words += block[turn].ravel()[: WORDS * used - len(words)].tolist()
            yield ticket, words


class Calculator:
    """Counts the zeros of maps on one device.

    Args:
        impl: who counts.
        turns: iterations whose counts are copied to the host together.

    Attributes:
        under_way: what was sent and not read.

    Raises:
        UsageError: ``impl`` is unknown.
    """

    def __init__(self, impl: Impl = "auto", turns: int = 1):
        if impl not in ("auto", "torch", "triton"):
            raise UsageError(f"monitor: expected impl auto, torch or triton, got {impl!r}")
        self.impl, self.turns = impl, turns
        self._tickets: list[Ticket] = []
        self._device: torch.device | None = None
        self._rows: dict[str, int] = {}
        # Maps by their names, and what ReLU that counts is given; how maps like these are counted together.
        self._known: tuple[dict[str, Known], dict[str, Known]] = {}, {}
        self._plans: dict[tuple[Known, ...], Plan] = {}
        self._captured: list[Plan] = []
        self._spare: Tensor | None = None
        self._blocks: list[Tensor] = []
        self._done: Tensor | None = None
        self._free: list[Slot] = []
        self.under_way: deque[Slot] = deque()

    def knows(self, name: str) -> bool:
        """Whether a map has been counted before, so that its memory is there."""
        return name in self._rows

    def known(self, name: str, x: Tensor, channels: int = 1, relu: bool = False) -> Known:
        """What is known of a map that is not empty; with ``relu`` it is what ReLU is given, and the map ReLU of that.

        Raises:
            UsageError: the map is on another device than those before.
        """
        before = self._known[relu].get(name)
        if before is not None and before.is_like(x):
            return before
        self._plans = {maps: plan for maps, plan in self._plans.items() if before not in maps}
        rows = x.shape[channels] if x.ndim > 1 else 1
        direct = self.by_kernel(x) and _lies_as_matrices(x, channels)
        if relu:
            direct = direct and x.nbytes >= WORTH and _lies_as_matrices(torch.empty_like(x), channels)
        kind = x.shape, x.stride(), x.dtype, x.device
        found = Known(name, self._row(name, x.device), rows, x.numel() // rows, direct, *kind)
        self._known[relu][name] = found
        return found

    def count(self, name: str, x: Tensor, channels: int = 1) -> Known:
        """Count a map behind all that its stream has to do.

        Raises:
            UsageError: the map is on another device than those before.
            MissingError: the kernel was asked for and is not here.
        """
        known = self.known(name, x, channels)
        matrices = as_matrices(x.detach(), channels)
        if self.by_kernel(x):
            place = [matrices.data_ptr()]
            self._launch((known,), lambda: [self._counted(known, matrices)], place, place)
        else:
            self._words(known)[self._turn()].copy_(count(matrices))
        return known

    def count_relu(self, known: Known, channels: int, x: Tensor, y: Tensor) -> None:
        """Write ReLU of ``x`` to ``y``, which may be ``x``, and count it, where the map is ``direct``."""
        self._launch(
            (known,),
            lambda: [self._counted(known, as_matrices(x.detach(), channels), as_matrices(y.detach(), channels))],
            [x.data_ptr()],
            [y.data_ptr()],
        )

    def count_together(self, maps: Sequence[tuple[Known, Tensor]], channels: int) -> list[Known]:
        """Count maps that are ``direct`` in one launch; answer them."""
        knowns = [known for known, _ in maps]
        if knowns:
            places = [x.data_ptr() for _, x in maps]
            self._launch(
                tuple(knowns),
                lambda: [self._counted(known, as_matrices(x.detach(), channels)) for known, x in maps],
                places,
                places,
            )
        return knowns

    def send(self, ticket: Ticket) -> None:
        """Say which of the last counts of all maps are wanted; if it is their turn, begin to copy them to the host."""
        if ticket.maps:
            self._tickets.append(ticket)
            if len(self._tickets) == self.turns:
                self.flush()

    def flush(self) -> None:
        """Begin to copy what has been counted to the host."""
        if not self._tickets or self._done is None:
            return
        slot = self._free.pop() if self._free else self._slot()
        if len(slot.blocks) < len(self._blocks):
            slot = self._slot()
        slot.open(self._tickets)
        self._tickets = []
        for there, here in zip(slot.blocks, self._blocks, strict=True):
            there.copy_(here, non_blocking=True)
        slot.flag.copy_(self._done, non_blocking=True)
        self.under_way.append(slot)

    def arrived(self) -> Iterator[Arrival]:
        """What has arrived since last asked, in the order in which it was sent; never waits."""
        while self.under_way and self.under_way[0].has_arrived():
            slot = self.under_way.popleft()
            yield from slot.read()
            self._free.append(slot)

    def drain(self) -> list[Arrival]:
        """Wait for all that was sent. Not for use within a training loop.

        Raises:
            LaminaError: something was sent on another stream than the current one.
        """
        self.flush()
        if self.under_way and self._done is not None:
            self._done.cpu()  # copied behind everything that was sent
        found = [*self.arrived()]
        if self.under_way:
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
            self._blocks.append(torch.zeros((self.turns, BLOCK, WORDS), dtype=torch.int64, device=device))
        return row

    def _words(self, known: Known) -> Tensor:
        """The words of a map, in all turns."""
        return self._blocks[known.row // BLOCK][:, known.row % BLOCK]

    def _counted(self, known: Known, matrices: Tensor, relu_to: Tensor | None = None) -> Counted:
        counted: Counted = _kernels().Counted(matrices, self._words(known), relu_to)
        return counted

    def _launch(
        self, knowns: tuple[Known, ...], maps: Callable[[], list[Counted]], read: list[int], written: list[int]
    ) -> None:
        """Count maps that are like these and at these places; the plan for the like of them may be there already."""
        if capturing():
            assert self._spare is not None, "memory that a launch before this one made"
            mine, self._spare = self._spare[: len(knowns)], self._spare[len(knowns) :]
            plan = _kernels().Plan(maps(), mine)
            self._captured.append(plan)
        elif plan := self._plans.get(knowns):
            plan.move(read, written)
        else:
            self._plans[knowns] = plan = _kernels().Plan(maps())
            if self._device is not None and (self._spare is None or len(self._spare) < len(self._rows)):
                self._spare = _kernels().table(max(SPARE, 2 * len(self._rows)), self._device)
        plan.launch(self._turn())

    def _turn(self) -> int:
        """Where the counts of this iteration go; those of a captured one always go to the first place."""
        return 0 if capturing() else len(self._tickets)

    def _slot(self) -> Slot:
        on_gpu = self._device is not None and self._device.type == "cuda"
        size = 1 + len(self._blocks) * self.turns * BLOCK * WORDS
        return Slot(torch.zeros(size, dtype=torch.int64, device="cpu", pin_memory=on_gpu), self.turns)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _lies_as_matrices(x: Tensor, channels: int) -> bool:
    return as_matrices(x.detach(), channels).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def _kernels() -> ModuleType:
    try:
        from lamina.accelerate.training.sparsity_monitor import ops
    except ImportError as error:
        raise MissingError(
            'monitor: expected Triton for its kernel; install lamina[kernels], or use impl="torch"'
        ) from error
    return ops
