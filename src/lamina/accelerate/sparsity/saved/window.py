"""Windows of poolings that kernels compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

PLACES = 256
"""As many places of a window as a byte tells apart."""


@dataclass(frozen=True)
class Window:
    """Sizes of a window, steps between windows and how far the first one stands out, along H and W."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def results(self, height: int, width: int) -> tuple[int, int]:
        """How many windows there are along each axis."""
        high, wide = (
            (size + 2 * out - within) // step + 1
            for size, within, step, out in zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        )
        return high, wide


def window_of(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Window | None:  # fmt: skip
    """The window of a call of ``max_pool2d`` that the kernels compute; None for others, and for those it refuses."""
    kernel, outside = _pair(kernel_size), _pair(padding)
    step = _pair(stride) if stride is not None and stride != () and stride != [] else kernel
    plain = x.dim() == 4 and x.is_contiguous() and _pair(dilation) == (1, 1) and not (ceil_mode or return_indices)
    if not plain or min(*kernel, *step, *x.shape) < 1 or min(outside) < 0 or kernel[0] * kernel[1] > PLACES:
        return None
    window = Window(kernel, step, outside)
    fits = all(2 * out <= within for out, within in zip(outside, kernel, strict=True))
    return window if fits and min(window.results(*x.shape[2:])) >= 1 else None


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[-1])
