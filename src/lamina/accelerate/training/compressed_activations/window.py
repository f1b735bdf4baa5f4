"""Max-poolings that the kernels support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from torch import Tensor

from lamina.accelerate.common.geometry import Pair, Pool2dGeometry

MAX_WINDOW_INDICES = 256
"""Elements of a window whose index fits a byte."""


@dataclass(frozen=True)
class Pooling:
    """A max pooling of a map of a ``shape`` (N, C, H, W)."""

    shape: tuple[int, ...]
    geometry: Pool2dGeometry

    @cached_property
    def results(self) -> tuple[int, ...]:
        """The shape of the output."""
        return *self.shape[:2], *self.geometry.positions(*self.shape[2:])

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """H and W of the input and of the output."""
        return *self.shape[2:], *self.results[2:]

    @cached_property
    def constexprs(self) -> dict[str, int]:
        """Constants of the kernels."""
        return self.geometry.constexprs()


def pooling_of(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooling | None:  # fmt: skip
    """The pooling of a ``max_pool2d`` call; None if the kernels do not support it, or it is invalid."""
    if x.dim() != 4 or not x.is_contiguous() or ceil_mode or return_indices:
        return None
    strides = kernel_size if stride is None or stride in ((), []) else stride
    return _pooling(x.shape, pair(kernel_size), pair(strides), pair(padding), pair(dilation))


@lru_cache
def _pooling(shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pooling | None:
    valid = min(*shape, *kernel, *stride) >= 1 and min(padding) >= 0 and kernel[0] * kernel[1] <= MAX_WINDOW_INDICES
    fits = all(2 * out <= within for out, within in zip(padding, kernel, strict=True))
    if not valid or not fits or dilation != (1, 1):
        return None
    pooling = Pooling(shape, Pool2dGeometry(*kernel, *stride, *padding))
    return pooling if min(pooling.results) >= 1 else None


def pair(size: int | Sequence[int]) -> Pair:
    """A size given for both spatial dimensions, or for each, as a pair."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
