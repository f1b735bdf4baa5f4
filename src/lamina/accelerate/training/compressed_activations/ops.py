"""ReLU and bitmaps by the kernels: what `bitmap` gives, with the blocks' non-zeros in whatever order blocks came."""

from __future__ import annotations

from collections import deque
from functools import cache
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from lamina.accelerate.runtime.launch import INT64_OFFSETS_FROM, launch
from lamina.accelerate.runtime.triton_ops import INTERPRETED
from lamina.accelerate.runtime.triton_utils import fast_divisor
from lamina.accelerate.training.compressed_activations import kernels
from lamina.accelerate.training.compressed_activations.bitmap import BLOCK, STORED, Bitmap, Form, gapless
from lamina.accelerate.training.compressed_activations.window import Pooling
from lamina.errors import LaminaError

ALONE = 2048
"""Elements of a program whose elements have nothing to do with each other."""

POOL_BLOCK = 512
"""Elements that a program of a pooling writes."""

PENDING = -1
"""What stands in the host's memory until the device has written a number there."""


def relu(x: Tensor, y: Tensor) -> Tensor:
    """Write ReLU of a tensor without gaps to one of its strides, or to itself; answer its bits."""
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    _launch(kernels.relu_kernel, x, x, y, bits, x.numel(), block=ALONE)
    return bits


def masked(x: Tensor, bits: Tensor) -> Tensor:
    """Elements of a tensor without gaps whose bit is set, in the order of memory, and zero for the others."""
    y = torch.empty_like(x)
    _launch(kernels.masked_kernel, x, x, bits, y, x.numel(), block=ALONE)
    return y


def max_pool(x: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """Max-pooling of a contiguous ``x: (N, C, H, W)``, and of each result the place in its window, as bytes."""
    y = x.new_empty(pooling.results)
    places = torch.empty(pooling.results, dtype=torch.uint8, device=x.device)
    _launch_pool(kernels.max_pool_kernel, pooling, y, x, y, places)
    return y, places


def max_pool_backward(gradient: Tensor, places: Tensor, pooling: Pooling) -> Tensor:
    """The gradient of what was pooled, from the contiguous gradient of the results."""
    x = gradient.new_empty(pooling.shape)
    _launch_pool(kernels.max_pool_backward_kernel, pooling, x, gradient, places, x, UPCAST=INTERPRETED)
    return x


def _launch_pool(kernel: Any, pooling: Pooling, written: Tensor, *tensors: Tensor, **more: Any) -> None:
    size, sizes = written.numel(), pooling.sizes
    index = tl.int64 if prod(pooling.shape) >= INT64_OFFSETS_FROM else tl.int32
    launch(
        kernel, -(-size // POOL_BLOCK), written, *tensors, size, *sizes, *_fast_divisors(sizes), sizes=size,
        **pooling.constexprs, **more, BLOCK=POOL_BLOCK, INDEX=index, num_warps=4,
    )  # fmt: skip


@cache
def _fast_divisors(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(fast_divisor, sizes))


class Counter:
    """Where the kernel counts non-zeros, and where it tells the host how many they are."""

    def __init__(self, device: torch.device) -> None:
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.told = torch.full((1,), PENDING, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._word = self.told.numpy()

    @property
    def nonzeros(self) -> int | None:
        """What the device told; None before."""
        number = int(self._word[0])
        return None if number == PENDING else number

    def another(self) -> Counter:
        """A new one on the same device."""
        return Counter(self.count.device)

    def clear(self) -> None:
        """Make ready for another tensor."""
        self._word[0] = PENDING


class Counters:
    """Counters in turn, as many as are under way."""

    def __init__(self, least: int = 2) -> None:
        self._least = least
        self._used: dict[torch.device, deque[Counter]] = {}

    def take(self, device: torch.device) -> Counter:
        """One of which the device has told, ``least`` others ago, or a new one."""
        used = self._used.setdefault(device, deque())
        if len(used) > self._least and used[0].nonzeros is not None:
            counter = used.popleft()
            counter.clear()
        else:
            counter = Counter(device)
        used.append(counter)
        return counter


class Packing:
    """A tensor on its way into a bitmap: its non-zeros go into memory for ``room`` of them.

    How many they are the device tells later; if there was not room for all, they are packed again.
    """

    def __init__(self, counter: Counter, room: int = 0) -> None:
        self.counter, self.room = counter, room
        self._stream: tuple[int, int, int] | None = None

    def begin(self, x: Tensor, bits: Tensor | None = None) -> Bitmap:
        """The bitmap as far as there is room, which has no bits of its own if they are given; does not wait."""
        device, size, shared = x.device, x.numel(), bits is not None
        if x.is_cuda:
            self._stream = torch._C._cuda_getCurrentStream(device.index)
        if bits is None:
            bits = torch.empty(-(-size // 8), dtype=torch.uint8, device=device)
        offsets = torch.empty(-(-size // BLOCK), dtype=torch.int64, device=device)
        self._itemsize = x.itemsize
        self._fixed = (0 if shared else bits.numel()) + 8 * offsets.numel()
        return self._packed(x, Form.of(x), bits, offsets, shared)

    def _packed(self, x: Tensor, form: Form, bits: Tensor, offsets: Tensor, shared: bool) -> Bitmap:
        elements, counter, size = _integers(x), self.counter, x.numel()
        values = torch.empty(self.room, dtype=elements.dtype, device=form.device)
        _launch(
            kernels.pack_kernel, x, elements, bits, offsets, values, counter.count, counter.told, size, self.room,
            BITS=not shared,
        )  # fmt: skip
        if not size:
            counter.told.zero_()
        return Bitmap(form, bits, offsets, values, shared)

    @property
    def told(self) -> bool:
        """Whether the device has told how many non-zeros there are."""
        return self.counter.nonzeros is not None

    def nonzeros(self) -> int:
        """How many non-zeros there are; waits.

        Raises:
            LaminaError: the device finished without telling.
        """
        while (found := self.counter.nonzeros) is None:
            # A query tells of errors of the device, which would otherwise be waited for in vain.
            if self._stream is not None and _stream(*self._stream).query() and not self.told:
                raise LaminaError(
                    "saved activations: the device finished, but did not tell how many non-zeros it found"
                )
        return found

    @property
    def nbytes(self) -> int:
        """Bytes that the whole bitmap takes; waits."""
        return self._fixed + max(self.nonzeros(), self.room) * self._itemsize

    def complete(self, x: Tensor, begun: Bitmap) -> Bitmap:
        """The whole bitmap of the same tensor; waits."""
        if (nonzeros := self.nonzeros()) <= self.room:
            return begun
        self.room = nonzeros
        self.counter.clear()  # is not another's until the device has told once more
        return self._packed(x, *begun[:3], begun.shares_bits)


def _stream(number: int, device: int, kind: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(stream_id=number, device_index=device, device_type=kind)


def pack(x: Tensor) -> Bitmap:
    """The bitmap of a tensor; waits for the device."""
    packing = Packing(Counter(x.device))
    return packing.complete(x, packing.begin(x))


def unpack(held: Bitmap) -> Tensor:
    """`bitmap.unpack`; NaN where there was no room for a non-zero."""
    y = held.form.empty()
    elements = _integers(y)
    _launch(
        kernels.unpack_kernel, y, held.bits, held.offsets, held.values, elements, y.numel(), held.values.numel()
    )  # fmt: skip
    return y


def _integers(x: Tensor) -> Tensor:
    """The elements as integers, in any order of axes but without gaps: kernels go by memory alone."""
    return (x if gapless(x) else x.contiguous()).view(STORED[x.itemsize])


def _launch(kernel: Any, x: Tensor, *args: Any, block: int = BLOCK, **switches: Any) -> None:
    size = x.numel()
    index = tl.int64 if size >= INT64_OFFSETS_FROM else tl.int32
    launch(kernel, -(-size // block), x, *args, sizes=size, **switches, BLOCK=block, INDEX=index, num_warps=8)
