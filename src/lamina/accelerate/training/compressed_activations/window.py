"""Poolings that kernels compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from torch import Tensor

from lamina.accelerate.common.geometry import Pair, Pool2dGeometry

PLACES = 256
"""As many places of a window as a byte tells apart."""


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
    """What a call of ``max_pool2d`` computes; None if the kernels do not, or PyTorch refuses it."""
    if x.dim() != 4 or not x.is_contiguous() or ceil_mode or return_indices:
        return None
    step = kernel_size if stride is None or stride in ((), []) else stride
    return _pooling(x.shape, pair(kernel_size), pair(step), pair(padding), pair(dilation))


@lru_cache
def _pooling(shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pooling | None:
    sensible = min(*shape, *kernel, *stride) >= 1 and min(padding) >= 0 and kernel[0] * kernel[1] <= PLACES
    fits = all(2 * out <= within for out, within in zip(padding, kernel, strict=True))
    if not sensible or not fits or dilation != (1, 1):
        return None
    pooling = Pooling(shape, Pool2dGeometry(*kernel, *stride, *padding))
    return pooling if min(pooling.results) >= 1 else None


def pair(size: int | Sequence[int]) -> Pair:
    """What a function of images takes for both of their axes, or for each."""
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
