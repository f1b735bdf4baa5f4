"""The buffer arena: numbered chunks of memory that the tensors of a network share over time.

After DNNMark's data manager: a tensor gets a chunk when it is made and gives it back after its last use, and
the layers before and after a tensor work on the very same chunk. Planned ahead from the times of use: large
tensors choose first, each taking the first chunk that is free for its whole life (greedy by size, as in
Pisarchyk & Lee 2020, "Efficient memory management for deep neural net inference").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Buffer:
    """A tensor's need for memory: from step ``first`` to step ``last``, both included."""

    key: str
    nbytes: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Plan:
    """Which chunk each buffer lives in. ``chunks`` are sizes in bytes, by chunk id."""

    buffers: tuple[Buffer, ...]
    chunk_of: Mapping[str, int]
    chunks: tuple[int, ...]

    @property
    def separate_bytes(self) -> int:
        """Memory if every buffer had its own."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def planned_bytes(self) -> int:
        """Memory of all chunks."""
        return sum(self.chunks)

    @property
    def live_bytes(self) -> int:
        """The most that is alive at one step: no plan needs less."""
        steps = {buffer.first for buffer in self.buffers}
        return max(
            (sum(b.nbytes for b in self.buffers if b.first <= step <= b.last) for step in steps),
            default=0,
        )


def plan(buffers: Sequence[Buffer]) -> Plan:
    """Give every buffer a chunk, never one chunk to two that are alive together."""
    tenants: list[list[Buffer]] = []
    chunk_of: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first, b.key)):
        free = (i for i, others in enumerate(tenants) if not any(buffer.meets(other) for other in others))
        chunk = next(free, len(tenants))
        if chunk == len(tenants):
            tenants.append([])
        tenants[chunk].append(buffer)
        chunk_of[buffer.key] = chunk
    return Plan(tuple(buffers), chunk_of, tuple(others[0].nbytes for others in tenants))


class Arena:
    """The chunks of a plan in a device's memory, each allocated when first used."""

    def __init__(self, plan: Plan, device: torch.device):
        self.plan = plan
        self.device = device
        self._chunks: dict[int, Tensor] = {}

    def place(self, key: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor of a buffer, over its chunk's memory, with whatever the last tenant left in it."""
        chunk = self.plan.chunk_of[key]
        if chunk not in self._chunks:
            self._chunks[chunk] = torch.empty(self.plan.chunks[chunk], dtype=torch.uint8, device=self.device)
        nbytes = prod(shape) * dtype.itemsize
        return self._chunks[chunk][:nbytes].view(dtype).as_strided(shape, dense_stride(shape, stride))


def dense_stride(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The stride nearest to a wanted one that leaves no gaps and overlaps nothing, as ``empty_like`` chooses it."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()
