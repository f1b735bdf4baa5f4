"""FFT convolution: a product of spectra, summed over channels at each frequency (Mathieu, Henaff, LeCun 2014).

With ``X, W, Y`` the real FFTs of input, kernel and output on a common grid:
``Y = conj(W) X`` (forward), ``X' = W^T Y'`` (data gradient), ``W' = X conj(Y')`` (weight gradient).
Padding is an offset on the grid, stride and dilation are steps on it. fp16 and bf16 are computed in float32 and cast
back, since the library's half-precision transforms support powers of two only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from lamina.build.convolution.geometry import Geometry, refuse_transposed
from lamina.spec.shape import Shape


def forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Output ``(N, K, *size)`` of inputs ``(N, C, *size)``."""
    grid, g = _grid(x.shape, w.shape, geometry), geometry.groups
    size = geometry.output_size(x.shape[2:], w.shape[2:])
    spectrum = _filters(_spectrum(w, grid, 0, geometry.dilation), g).conj() @ _images(
        _spectrum(x, grid, geometry.padding, 1), g
    )
    return _signal(_from_images(spectrum), grid, 0, geometry.stride, size, x.dtype)


def backward_data(gy: Tensor, w: Tensor, geometry: Geometry, x_shape: Sequence[int]) -> Tensor:
    """Gradient of the input, ``x_shape``."""
    grid, g = _grid(x_shape, w.shape, geometry), geometry.groups
    spectrum = _filters(_spectrum(w, grid, 0, geometry.dilation), g).transpose(-1, -2) @ _images(
        _spectrum(gy, grid, 0, geometry.stride), g
    )
    return _signal(_from_images(spectrum), grid, geometry.padding, 1, x_shape[2:], gy.dtype)


def backward_weight(gy: Tensor, x: Tensor, geometry: Geometry, w_shape: Sequence[int]) -> Tensor:
    """Gradient of the weight, ``w_shape``."""
    grid, g = _grid(x.shape, w_shape, geometry), geometry.groups
    spectrum = _images(_spectrum(gy, grid, 0, geometry.stride), g).conj() @ _images(
        _spectrum(x, grid, geometry.padding, 1), g
    ).transpose(-1, -2)
    return _signal(_from_filters(spectrum), grid, 0, geometry.dilation, w_shape[2:], x.dtype)


def refusal(geometry: Geometry, w_shape: Sequence[int]) -> str | None:
    """Transposed convolutions are not supported."""
    return refuse_transposed(geometry)


def smooth_size(least: int) -> int:
    """The smallest ``2^a 3^b 5^c`` that is at least ``least``; FFT libraries are fast for such lengths.

    >>> [smooth_size(n) for n in (1, 7, 31, 226)]
    [1, 8, 32, 240]
    """

    def smooth(n: int) -> bool:
        for prime in (2, 3, 5):
            while n % prime == 0:
                n //= prime
        return n == 1

    return next(n for n in count(least) if smooth(n))


def _grid(x_shape: Sequence[int], w_shape: Sequence[int], geometry: Geometry) -> Shape:
    """Length of the transform along each axis.

    The input starts at ``padding``. By periodicity, the zeros before it are also the zeros after it, so the length must
    hold the input and one padding, not two. It must also hold the kernel, and the output before subsampling.
    """
    extent = geometry.extent(w_shape[2:])
    axes = zip(x_shape[2:], geometry.padding, extent, strict=True)
    return tuple(smooth_size(max(size + pad, span, size + 2 * pad - span + 1)) for size, pad, span in axes)


def _window(offset: int | Shape, step: int | Shape, size: Sequence[int]) -> tuple[slice, ...]:
    """The grid slices of a signal of ``size``, from ``offset`` with stride ``step``."""
    offsets = (offset,) * len(size) if isinstance(offset, int) else offset
    steps = (step,) * len(size) if isinstance(step, int) else step
    axes = zip(offsets, steps, size, strict=True)
    return (slice(None), slice(None), *(slice(o, o + (n - 1) * s + 1, s) for o, s, n in axes))


def _spectrum(signal: Tensor, grid: Shape, offset: int | Shape, step: int | Shape) -> Tensor:
    """FFT of ``(A, B, *size)``, zero-padded to the grid: complex ``(A, B, frequencies)``."""
    dtype = torch.promote_types(signal.dtype, torch.float32)
    canvas = torch.zeros((*signal.shape[:2], *grid), dtype=dtype, device=signal.device)
    canvas[_window(offset, step, signal.shape[2:])] = signal
    spectrum: Tensor = torch.fft.rfftn(canvas, dim=tuple(range(2, canvas.dim())))
    return spectrum.flatten(2)


def _signal(
    spectrum: Tensor,
    grid: Shape,
    offset: int | Shape,
    step: int | Shape,
    size: Sequence[int],
    dtype: torch.dtype,
) -> Tensor:
    """Inverse FFT of complex ``(A, B, frequencies)``, sliced from the grid to ``(A, B, *size)``."""
    spectrum = torch.unflatten(spectrum, 2, (*grid[:-1], grid[-1] // 2 + 1))
    canvas: Tensor = torch.fft.irfftn(spectrum, s=grid, dim=tuple(range(2, spectrum.dim())))
    return canvas[_window(offset, step, size)].to(dtype).contiguous()


def _images(spectrum: Tensor, groups: int) -> Tensor:
    """``(N, C, frequencies)`` as ``(frequencies, g, C/g, N)``."""
    return torch.unflatten(spectrum, 1, (groups, -1)).permute(3, 1, 2, 0)


def _filters(spectrum: Tensor, groups: int) -> Tensor:
    """``(K, C/g, frequencies)`` as ``(frequencies, g, K/g, C/g)``."""
    return torch.unflatten(spectrum, 0, (groups, -1)).permute(3, 0, 1, 2)


def _from_images(spectrum: Tensor) -> Tensor:
    return spectrum.permute(3, 1, 2, 0).flatten(1, 2)


def _from_filters(spectrum: Tensor) -> Tensor:
    return spectrum.permute(1, 2, 3, 0).flatten(0, 1)
