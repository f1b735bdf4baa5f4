"""ReLU, bitmaps and max-pooling by the kernels.

The bitmaps are those of `bitmap`, but for the order of blocks among the values, which is not deterministic.
"""

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
from lamina.accelerate.training.compressed_activations.bitmap import (
    BLOCK,
    INTEGER_DTYPES,
    Bitmap,
    TensorLayout,
    is_dense_in_memory,
)
from lamina.accelerate.training.compressed_activations.window import Pooling
from lamina.errors import LaminaError

ELEMENTWISE_BLOCK = 2048
"""Elements of a program of an elementwise kernel."""

POOL_BLOCK = 512
"""Elements that a program of a pooling kernel writes."""

PENDING = -1
"""The content of host memory until the device has written a count."""


def relu(x: Tensor, y: Tensor) -> Tensor:
    """Write the ReLU of a tensor that is dense in memory to ``y``, of the same strides or itself; returns its bits."""
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    _launch(kernels.relu_kernel, x, x, y, bits, x.numel(), block=ELEMENTWISE_BLOCK)
    return bits


def masked(x: Tensor, bits: Tensor) -> Tensor:
    """The elements of a dense tensor whose bit is set, in memory order, and zero for the others."""
    y = torch.empty_like(x)
    _launch(kernels.masked_kernel, x, x, bits, y, x.numel(), block=ELEMENTWISE_BLOCK)
    return y


def max_pool(x: Tensor, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """Max-pooling of a contiguous ``x: (N, C, H, W)``, and the index of each maximum in its window, uint8."""
    y = x.new_empty(pooling.results)
    indices = torch.empty(pooling.results, dtype=torch.uint8, device=x.device)
    _launch_pool(kernels.max_pool_kernel, pooling, y, x, y, indices)
    return y, indices


def max_pool_backward(gradient: Tensor, indices: Tensor, pooling: Pooling) -> Tensor:
    """The gradient of the input, from the contiguous gradient of the output."""
    x = gradient.new_empty(pooling.shape)
    _launch_pool(kernels.max_pool_backward_kernel, pooling, x, gradient, indices, x, UPCAST=INTERPRETED)
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
    """A device counter of non-zeros, and pinned host memory that receives the count."""

    def __init__(self, device: torch.device) -> None:
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.reported = torch.full((1,), PENDING, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._word = self.reported.numpy()

    @property
    def nonzeros(self) -> int | None:
        """The count, or None while it is pending."""
        number = int(self._word[0])
        return None if number == PENDING else number

    def another(self) -> Counter:
        """A new counter on the same device."""
        return Counter(self.count.device)

    def clear(self) -> None:
        """Reset for another tensor."""
        self._word[0] = PENDING


class Counters:
    """A pool of counters, as many as are in flight."""

    def __init__(self, min_pending: int = 2) -> None:
        self._min_pending = min_pending
        self._used: dict[torch.device, deque[Counter]] = {}

    def take(self, device: torch.device) -> Counter:
        """The oldest counter if it has reported and more than ``min_pending`` are in use, else a new one."""
        used = self._used.setdefault(device, deque())
        if len(used) > self._min_pending and used[0].nonzeros is not None:
            counter = used.popleft()
            counter.clear()
        else:
            counter = Counter(device)
        used.append(counter)
        return counter


class Packing:
    """The packing of a tensor into a bitmap with ``capacity`` values.

    The device reports the number of non-zeros later; if they exceed the capacity, they are packed again.
    """

    def __init__(self, counter: Counter, capacity: int = 0) -> None:
        self.counter, self.capacity = counter, capacity
        self._stream: tuple[int, int, int] | None = None

    def begin(self, x: Tensor, bits: Tensor | None = None) -> Bitmap:
        """The bitmap, up to its capacity; it shares the ``bits`` if they are given. Does not synchronize."""
        device, size, shared = x.device, x.numel(), bits is not None
        if x.is_cuda:
            self._stream = torch._C._cuda_getCurrentStream(device.index)
        if bits is None:
            bits = torch.empty(-(-size // 8), dtype=torch.uint8, device=device)
        offsets = torch.empty(-(-size // BLOCK), dtype=torch.int64, device=device)
        self._itemsize = x.itemsize
        self._fixed = (0 if shared else bits.numel()) + 8 * offsets.numel()
        return self._packed(x, TensorLayout.of(x), bits, offsets, shared)

    def _packed(self, x: Tensor, layout: TensorLayout, bits: Tensor, offsets: Tensor, shared: bool) -> Bitmap:
        elements, counter, size = _integers(x), self.counter, x.numel()
        values = torch.empty(self.capacity, dtype=elements.dtype, device=layout.device)
        _launch(
            kernels.pack_kernel, x, elements, bits, offsets, values, counter.count, counter.reported, size,
            self.capacity, BITS=not shared,
        )  # fmt: skip
        if not size:
            counter.reported.zero_()
        return Bitmap(layout, bits, offsets, values, shared)

    @property
    def reported(self) -> bool:
        """Whether the number of non-zeros has arrived."""
        return self.counter.nonzeros is not None

    def nonzeros(self) -> int:
        """The number of non-zeros; synchronizes.

        Raises:
            LaminaError: the device finished without reporting a count.
        """
        while (count := self.counter.nonzeros) is None:
            # The query raises device errors, after which the count would never arrive.
            if self._stream is not None and _stream(*self._stream).query() and not self.reported:
                raise LaminaError(
                    "saved activations: the device finished, but did not tell how many non-zeros it count"
                )
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the complete bitmap; synchronizes."""
        return self._fixed + max(self.nonzeros(), self.capacity) * self._itemsize

    def complete(self, x: Tensor, begun: Bitmap) -> Bitmap:
        """The complete bitmap of the same tensor; synchronizes."""
        if (nonzeros := self.nonzeros()) <= self.capacity:
            return begun
        self.capacity = nonzeros
        self.counter.clear()  # not reused until the device has reported again
        return self._packed(x, *begun[:3], begun.shares_bits)


def _stream(number: int, device: int, kind: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(stream_id=number, device_index=device, device_type=kind)


def pack(x: Tensor) -> Bitmap:
    """The bitmap of a tensor; synchronizes."""
    packing = Packing(Counter(x.device))
    return packing.complete(x, packing.begin(x))


def unpack(bitmap: Bitmap) -> Tensor:
    """`bitmap.unpack`; NaN for non-zeros beyond the capacity."""
    y = bitmap.layout.empty()
    elements = _integers(y)
    _launch(
        kernels.unpack_kernel, y, bitmap.bits, bitmap.offsets, bitmap.values, elements, y.numel(), bitmap.values.numel()
    )  # fmt: skip
    return y


def _integers(x: Tensor) -> Tensor:
    """The elements as integers, dense in memory, in any dimension order."""
    return (x if is_dense_in_memory(x) else x.contiguous()).view(INTEGER_DTYPES[x.itemsize])


def _launch(kernel: Any, x: Tensor, *args: Any, block: int = BLOCK, **constexprs: Any) -> None:
    size = x.numel()
    index = tl.int64 if size >= INT64_OFFSETS_FROM else tl.int32
    launch(kernel, -(-size // block), x, *args, sizes=size, **constexprs, BLOCK=block, INDEX=index, num_warps=8)
