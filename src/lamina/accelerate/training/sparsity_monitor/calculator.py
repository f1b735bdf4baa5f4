"""The calculator: counts activation maps on their device and copies the counts to the host without synchronizing.

The counts of one or several iterations are copied into a slot of pinned memory, followed by a flag. Copies on one
stream complete in order, so that the counts are valid once the host sees the flag. The host polls the flags; slots are
reused after they have been read.
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
    from lamina.accelerate.training.sparsity_monitor.ops import CountedMap, CountPlan

Impl = Literal["auto", "torch", "triton"]
"""The implementation: the Triton kernel, PyTorch's operators, or ``auto``: the kernel for maps on a GPU."""

BLOCK = 64
"""Maps whose counts are copied together."""

MIN_CAPTURE_TABLE = 256
"""Maps for which memory is reserved in the tables of captured launches."""

MIN_FUSED_BYTES = 128 << 20
"""Bytes of a map from which fused ReLU and count pays for its own launch and autograd node."""


@dataclass(eq=False, slots=True)
class MapInfo:
    """Properties of a map when it was last counted, reused for maps of the same layout.

    Attributes:
        row: of its counts.
        rows, columns: of its matrix.
        direct: the kernel can read it in place, so that its count can be deferred, or fused with ReLU.
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
        """Whether a map has the same shape, strides, dtype and device."""
        same = x.shape == self.shape and x.stride() == self.stride
        return same and x.dtype is self.dtype and x.device == self.device

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns


class Ticket(NamedTuple):
    """The maps that counts of an iteration belong to, and for each its monitoring process."""

    iteration: int
    maps: tuple[MapInfo, ...]
    processes: tuple[int, ...]

    def sparsities(self, words: Sequence[int]) -> list[float]:
        """The sparsity of each map."""
        return [1 - words[WORDS * known.row] / known.size for known in self.maps]

    def read(self, words: Sequence[int]) -> list[Observation]:
        """The observations of this ticket."""
        return [
            Observation.from_words(
                known.name, self.iteration, known.rows, known.columns, words[WORDS * known.row :][:WORDS]
            )
            for known in self.maps
        ]


Arrival = tuple[Ticket, list[int]]
"""A ticket and the words of the rows up to the last that it needs."""


class Slot:
    """Pinned memory that receives counts.

    Args:
        memory: of the host, int64: a flag, which is written after the counts, and blocks of counts.
        iterations: iterations that a block is for.

    Attributes:
        tickets: what the counts of each index belong to.
    """

    def __init__(self, memory: Tensor, iterations: int):
        self.flag = memory[:1]
        self.blocks = memory[1:].view(-1, iterations, BLOCK, WORDS).unbind()
        self.tickets: list[Ticket] = []
        self._array = memory.numpy()

    def open(self, tickets: list[Ticket]) -> None:
        """Prepare for the counts of these tickets."""
        self._array[0] = 0
        self.tickets = tickets

    def has_arrived(self) -> bool:
        """Whether the counts have arrived."""
        return bool(self._array[0])

    def read(self) -> Iterator[Arrival]:
        """Each ticket with the words of the rows up to the last that it needs."""
        blocks = [block.numpy() for block in self.blocks]
        for index, ticket in enumerate(self.tickets):
            used = 1 + max([known.row for known in ticket.maps])
            words: list[int] = []
            for block in blocks[: 1 + (used - 1) // BLOCK]:
                words += block[index].ravel()[: WORDS * used - len(words)].tolist()
            yield ticket, words


class Calculator:
    """Counts the zeros of maps on one device.

    Args:
        impl: the implementation.
        iterations: iterations whose counts are copied to the host together.

    Attributes:
        in_flight: slots that were sent and not read.

    Raises:
        UsageError: ``impl`` is unknown.
    """

    def __init__(self, impl: Impl = "auto", iterations: int = 1):
        if impl not in ("auto", "torch", "triton"):
            raise UsageError(f"monitor: expected impl auto, torch or triton, got {impl!r}")
        self.impl, self.iterations = impl, iterations
        self._tickets: list[Ticket] = []
        self._device: torch.device | None = None
        self._rows: dict[str, int] = {}
        # Maps by their names, and what ReLU that counts is given; how maps like these are counted together.
        self._known: tuple[dict[str, MapInfo], dict[str, MapInfo]] = {}, {}
        self._plans: dict[tuple[MapInfo, ...], CountPlan] = {}
        self._captured: list[CountPlan] = []
        self._spare: Tensor | None = None
        self._blocks: list[Tensor] = []
        self._done: Tensor | None = None
        self._free: list[Slot] = []
        self.in_flight: deque[Slot] = deque()

    def knows(self, name: str) -> bool:
        """Whether a map has been counted before, so that its memory is allocated."""
        return name in self._rows

    def known(self, name: str, x: Tensor, channels: int = 1, relu: bool = False) -> MapInfo:
        """Properties of a non-empty map; with ``relu``, ``x`` is the input of the ReLU whose output is the map.

        Raises:
            UsageError: the map is on another device than those before.
        """
        before = self._known[relu].get(name)
        if before is not None and before.is_like(x):
            return before
        self._plans = {maps: plan for maps, plan in self._plans.items() if before not in maps}
        rows = as_matrices(x.detach(), channels).shape[1]
        direct = self.uses_kernel(x) and _is_matrix_view(x, channels)
        if relu:
            direct = direct and x.nbytes >= MIN_FUSED_BYTES and _is_matrix_view(torch.empty_like(x), channels)
        kind = x.shape, x.stride(), x.dtype, x.device
        found = MapInfo(name, self._row(name, x.device), rows, x.numel() // rows, direct, *kind)
        self._known[relu][name] = found
        return found

    def count(self, name: str, x: Tensor, channels: int = 1) -> MapInfo:
        """Count a map, in stream order.

        Raises:
            UsageError: the map is on another device than those before.
            MissingError: the kernel was requested, but Triton is not installed.
        """
        known = self.known(name, x, channels)
        matrices = as_matrices(x.detach(), channels)
        if self.uses_kernel(x):
            place = [matrices.data_ptr()]
            self._launch((known,), lambda: [self._counted_map(known, matrices)], place, place)
        else:
            self._words(known)[self._batch_index()].copy_(count(matrices))
        return known

    def count_relu(self, known: MapInfo, channels: int, x: Tensor, y: Tensor) -> None:
        """Write ReLU of ``x`` to ``y``, which may be ``x``, and count it, where the map is ``direct``."""
        self._launch(
            (known,),
            lambda: [self._counted_map(known, as_matrices(x.detach(), channels), as_matrices(y.detach(), channels))],
            [x.data_ptr()],
            [y.data_ptr()],
        )

    def count_batch(self, maps: Sequence[tuple[MapInfo, Tensor]], channels: int) -> list[MapInfo]:
        """Count ``direct`` maps in one launch; returns their properties."""
        knowns = [known for known, _ in maps]
        if knowns:
            places = [x.data_ptr() for _, x in maps]
            self._launch(
                tuple(knowns),
                lambda: [self._counted_map(known, as_matrices(x.detach(), channels)) for known, x in maps],
                places,
                places,
            )
        return knowns

    def send(self, ticket: Ticket) -> None:
        """Register which of the last counts are needed; once a batch is complete, begin to copy it to the host."""
        if ticket.maps:
            self._tickets.append(ticket)
            if len(self._tickets) == self.iterations:
                self.flush()

    def flush(self) -> None:
        """Begin to copy the registered counts to the host."""
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
        self.in_flight.append(slot)

    def arrived(self) -> Iterator[Arrival]:
        """The counts that have arrived since the last call, in order; does not synchronize."""
        while self.in_flight and self.in_flight[0].has_arrived():
            slot = self.in_flight.popleft()
            yield from slot.read()
            self._free.append(slot)

    def drain(self) -> list[Arrival]:
        """Synchronize to read everything in flight. Not for use within a training loop.

        Raises:
            LaminaError: something was sent on another stream than the current one.
        """
        self.flush()
        if self.in_flight and self._done is not None:
            self._done.cpu()  # copied after everything that was sent
        found = [*self.arrived()]
        if self.in_flight:
            raise LaminaError("monitor: counts are still in flight on another stream: drain on the model's own stream")
        return found

    def uses_kernel(self, matrices: Tensor) -> bool:
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
            self._blocks.append(torch.zeros((self.iterations, BLOCK, WORDS), dtype=torch.int64, device=device))
        return row

    def _words(self, known: MapInfo) -> Tensor:
        """The words of a map, for all iterations of a batch."""
        return self._blocks[known.row // BLOCK][:, known.row % BLOCK]

    def _counted_map(self, known: MapInfo, matrices: Tensor, relu_to: Tensor | None = None) -> CountedMap:
        counted: CountedMap = _kernels().CountedMap(matrices, self._words(known), relu_to)
        return counted

    def _launch(
        self, knowns: tuple[MapInfo, ...], maps: Callable[[], list[CountedMap]], read: list[int], written: list[int]
    ) -> None:
        """Count maps that are like these and at these places; the plan for the like of them may be there already."""
        if capturing():
            assert self._spare is not None, "memory that a launch before this one made"
            mine, self._spare = self._spare[: len(knowns)], self._spare[len(knowns) :]
            plan = _kernels().CountPlan(maps(), mine)
            self._captured.append(plan)
        elif plan := self._plans.get(knowns):
            plan.move(read, written)
        else:
            self._plans[knowns] = plan = _kernels().CountPlan(maps())
            if self._device is not None and (self._spare is None or len(self._spare) < len(self._rows)):
                self._spare = _kernels().table(max(MIN_CAPTURE_TABLE, 2 * len(self._rows)), self._device)
        plan.launch(self._batch_index())

    def _batch_index(self) -> int:
        """Where the counts of this iteration go; those of a captured one always go to the first place."""
        return 0 if capturing() else len(self._tickets)

    def _slot(self) -> Slot:
        on_gpu = self._device is not None and self._device.type == "cuda"
        size = 1 + len(self._blocks) * self.iterations * BLOCK * WORDS
        return Slot(torch.zeros(size, dtype=torch.int64, device="cpu", pin_memory=on_gpu), self.iterations)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_matrix_view(x: Tensor, channels: int) -> bool:
    return as_matrices(x.detach(), channels).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def _kernels() -> ModuleType:
    try:
        from lamina.accelerate.training.sparsity_monitor import ops
    except ImportError as error:
        raise MissingError(
            'monitor: expected Triton for its kernel; install lamina[kernels], or use impl="torch"'
        ) from error
    return ops
