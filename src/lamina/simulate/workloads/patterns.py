"""Zero patterns of activation maps: iid, whole channels, spatial clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lamina.errors import UsageError, nearest
from lamina.simulate.workloads.columns import Mask

MapShape = tuple[int, int, int, int]
"""Images, channels, height, width."""
BLOB = 2.0
"""Default radius of a cluster in pixels: the standard deviation of the Gaussian filter."""


def pattern(name: str, shape: MapShape, density: float, seed: int, blob: float = BLOB) -> Mask:
    """A mask [N, C, H, W] with a fraction ``density`` of non-zeros.

    ``iid``: independent values. ``channel``: dead channels are zero in every image, the others nowhere.
    ``spatial``: clusters of about ``blob`` pixels in height and width, independent per image and channel.
    Equal arguments give equal masks; an image of ``iid`` and ``spatial`` does not depend on the batch size.

    Raises:
        UsageError: no such pattern, an empty shape, a density outside of 0 to 1, a negative seed or blob.
    """
    if name not in PATTERNS:
        raise UsageError(f"zero pattern {name!r} is unknown: {nearest(name, PATTERNS)}")
    if len(shape) != 4 or min(shape) < 1:
        raise UsageError(f"zero pattern: expected a shape of four positive sizes [N, C, H, W], got {list(shape)}")
    if not 0 <= density <= 1:
        raise UsageError(f"zero pattern: expected a density from 0 to 1, got {density}")
    if seed < 0:
        raise UsageError(f"zero pattern: expected a seed of at least 0, got {seed}")
    if not (0 <= blob < math.inf):
        raise UsageError(f"zero pattern: expected a blob of at least 0 pixels, got {blob}")
    return PATTERNS[name](shape, density, seed, blob)


def _iid(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    return np.stack(
        [
            np.random.default_rng([seed, image]).random(shape[1:], dtype=np.float32) < density
            for image in range(shape[0])
        ]
    )


def _channel(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    """Non-zero channels by the density; a fractional channel is non-zero with the probability of its fraction."""
    random = np.random.default_rng(seed)
    count = math.floor(density * shape[1] + random.random())
    active = np.zeros(shape[1], dtype=np.bool_)
    active[random.permutation(shape[1])[:count]] = True
    return np.broadcast_to(active[:, None, None], shape).copy()


def _spatial(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    """Gaussian-filtered white noise, thresholded at the quantile of the density."""
    if density in (0, 1):
        return np.full(shape, density == 1, dtype=np.bool_)
    cut = NormalDist().inv_cdf(density)
    response = _gaussian(shape[2], shape[3], blob)
    return np.stack(
        [
            np.fft.irfft2(
                np.fft.rfft2(np.random.default_rng([seed, image]).standard_normal(shape[1:], dtype=np.float32))
                * response,
                s=shape[2:],
            )
            < cut
            for image in range(shape[0])
        ]
    )


def _gaussian(height: int, width: int, radius: float) -> NDArray[np.float32]:
    """Frequency response of a periodic Gaussian filter that preserves the variance of white noise."""
    squares = np.fft.fftfreq(height)[:, None] ** 2 + np.fft.fftfreq(width) ** 2
    response = np.exp(-2 * (math.pi * radius) ** 2 * squares)
    response /= math.sqrt(float(np.mean(response**2)))
    return response[:, : width // 2 + 1].astype(np.float32)


PATTERNS: dict[str, Callable[[MapShape, float, int, float], Mask]] = {
    "iid": _iid,
    "channel": _channel,
    "spatial": _spatial,
}
