"""The buffer arena: chunks of memory that the tensors of a network share over time.

Like DNNMark's data manager, a tensor occupies a chunk from its creation to its last use, and its producer and consumers
work on the same chunk. Chunks are planned ahead from the lifetimes: tensors are assigned by decreasing size, each to
the first chunk that is free for its whole lifetime (greedy by size, as in Pisarchyk & Lee 2020, "Efficient memory
management for deep neural net inference").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True)
class Buffer:
    """The size and lifetime of a tensor: from step ``first`` to step ``last``, both included."""

    key: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Buffer) -> bool:
        """Whether the lifetimes overlap."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """The chunk of each buffer. ``chunks`` are sizes in bytes, by chunk index."""

    buffers: tuple[Buffer, ...]
    chunk_of: Mapping[str, int]
    chunks: tuple[int, ...]

    @property
    def separate_bytes(self) -> int:
        """Memory without sharing, in bytes."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def planned_bytes(self) -> int:
        """Memory of all chunks, in bytes."""
        return sum(self.chunks)

    @property
    def live_bytes(self) -> int:
        """Largest sum of live buffers at one step, in bytes: a lower bound for every plan."""
        steps = {buffer.first for buffer in self.buffers}
        return max(
            (sum(b.nbytes for b in self.buffers if b.first <= step <= b.last) for step in steps),
            default=0,
        )


def plan(buffers: Sequence[Buffer]) -> MemoryPlan:
    """Assign a chunk to every buffer, so that buffers of a chunk never overlap in time."""
    occupants: list[list[Buffer]] = []
    chunk_of: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.nbytes, b.first, b.key)):
        free = (i for i, others in enumerate(occupants) if not any(buffer.overlaps(other) for other in others))
        chunk = next(free, len(occupants))
        if chunk == len(occupants):
            occupants.append([])
        occupants[chunk].append(buffer)
        chunk_of[buffer.key] = chunk
    return MemoryPlan(tuple(buffers), chunk_of, tuple(others[0].nbytes for others in occupants))


class Arena:
    """The chunks of a plan in device memory, each allocated at its first use."""

    def __init__(self, plan: MemoryPlan, device: torch.device):
        self.plan = plan
        self.device = device
        self._chunks: dict[int, Tensor] = {}

    def tensor(self, key: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor of a buffer in its chunk's memory. Its contents are those of the previous buffer."""
        chunk = self.plan.chunk_of[key]
        if chunk not in self._chunks:
            self._chunks[chunk] = torch.empty(self.plan.chunks[chunk], dtype=torch.uint8, device=self.device)
        nbytes = prod(shape) * dtype.itemsize
        return self._chunks[chunk][:nbytes].view(dtype).as_strided(shape, dense_stride(shape, stride))


def dense_stride(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The dense, non-overlapping stride closest to a given one, as ``empty_like`` chooses it."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()
