"""Zero patterns of activation maps: independent, whole channels, clustered in space."""

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
"""Default radius of a cluster, in places of the map: the standard deviation of the filter that makes it."""


def pattern(name: str, shape: MapShape, density: float, seed: int, blob: float = BLOB) -> Mask:
    """A mask [N, C, H, W] in which a share ``density`` of the values is not zero.

    ``iid``: each value for itself. ``channel``: dead channels are zero in every image, the others nowhere.
    ``spatial``: clusters of about ``blob`` places in height and width, each image and channel for itself.
    Equal arguments give equal masks; an image of ``iid`` and ``spatial`` is the same at any batch size.

    Raises:
        UsageError: no such pattern, an empty shape, a density outside 0 to 1, a negative seed or blob.
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
        raise UsageError(f"zero pattern: expected a blob of at least 0 places, got {blob}")
    return PATTERNS[name](shape, density, seed, blob)


def _iid(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    return np.stack(
        [
            np.random.default_rng([seed, image]).random(shape[1:], dtype=np.float32) < density
            for image in range(shape[0])
        ]
    )


def _channel(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    """As many live channels as the density asks for; the broken one lives with the probability of its share."""
    random = np.random.default_rng(seed)
    live = math.floor(density * shape[1] + random.random())
    alive = np.zeros(shape[1], dtype=np.bool_)
    alive[random.permutation(shape[1])[:live]] = True
    return np.broadcast_to(alive[:, None, None], shape).copy()


def _spatial(shape: MapShape, density: float, seed: int, blob: float) -> Mask:
    """White noise through a Gaussian filter, cut where a normal value lies below with the density's probability."""
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
    """Frequency response of a Gaussian that wraps round the edges and keeps the variance of white noise."""
    squares = np.fft.fftfreq(height)[:, None] ** 2 + np.fft.fftfreq(width) ** 2
    response = np.exp(-2 * (math.pi * radius) ** 2 * squares)
    response /= math.sqrt(float(np.mean(response**2)))
    return response[:, : width // 2 + 1].astype(np.float32)


PATTERNS: dict[str, Callable[[MapShape, float, int, float], Mask]] = {
    "iid": _iid,
    "channel": _channel,
    "spatial": _spatial,
}
