"""Batches of samples in the input shape of a network: cropped, resized, normalized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.build.data.dataset import Dataset, kind_of, to_float
from lamina.errors import UsageError

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luma (ITU-R BT.601)."""


def as_batch(dataset: Dataset, batch: int, shape: Sequence[int] | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """``batch`` samples drawn by ``seed``, in the shape ``shape`` (default: the dataset's), with labels.

    A batch larger than the dataset repeats it. See :func:`samples` for the preprocessing.

    Raises:
        UsageError: the samples cannot have that shape, or ``batch`` is not positive.
    """
    if batch < 1:
        raise UsageError(f"expected a batch of at least 1, got {batch}")
    order = np.random.default_rng(seed).permutation(len(dataset))
    return samples(dataset, torch.from_numpy(np.resize(order, batch)), shape)


def samples(dataset: Dataset, indices: Tensor, shape: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """The samples at ``indices``, and their labels.

    Images: normalized per channel, converted between grayscale and RGB, center-cropped to the aspect ratio and resized,
    float32 ``(N, C, H, W)``.
    Frames: normalized per feature, truncated or padded with the mean at the end, float32 ``(N, T, F)``.
    Tokens: truncated at the end with their labels, int64 ``(N, T)``.
    Values: as they are, float32 ``(N, ...)``.
    All operations run on the device of the dataset.

    Raises:
        UsageError: the samples cannot have that shape.
    """
    shape = dataset.shape if shape is None else tuple(shape)
    wanted = kind_of(shape, len(shape) == 1 and dataset.kind != "values")
    if wanted != dataset.kind or (wanted == "values" and shape != dataset.shape):
        raise UsageError(
            f"{dataset.name}: expected a dataset of {wanted} for the input shape {shape}, "
            f"got {dataset.kind} of shape {dataset.shape}"
        )
    x, y = dataset.x[indices], dataset.y[indices]
    if dataset.kind == "tokens":
        return _truncate_tokens(dataset, x, y, shape[0])
    if dataset.kind == "values":
        return to_float(x), y
    mean, std = (torch.tensor(one, device=x.device) for one in (dataset.mean, dataset.std))
    if dataset.kind == "frames":
        return _fit_frames(dataset, (to_float(x) - mean) / std, shape), y
    x = (to_float(x) - mean[:, None, None]) / std[:, None, None]
    return _resize(_convert_channels(dataset, x, shape[0]), shape[1], shape[2]), y


def _truncate_tokens(dataset: Dataset, x: Tensor, y: Tensor, length: int) -> tuple[Tensor, Tensor]:
    if length > x.shape[1]:
        raise UsageError(f"{dataset.name}: expected at most {x.shape[1]} tokens, its sequences' length, got {length}")
    return x[:, :length], y[:, :length] if y.dim() > 1 else y


def _fit_frames(dataset: Dataset, x: Tensor, shape: Sequence[int]) -> Tensor:
    length, features = shape
    if features != x.shape[2]:
        raise UsageError(f"{dataset.name}: expected {x.shape[2]} features per frame, as in the data, got {features}")
    return F.pad(x[:, :length], (0, 0, 0, max(0, length - x.shape[1])))


def _convert_channels(dataset: Dataset, x: Tensor, channels: int) -> Tensor:
    own = x.shape[1]
    if own == channels:
        return x
    if own == 1:
        return x.expand(-1, channels, -1, -1)
    if own == 3 and channels == 1:
        return (x * torch.tensor(_LUMA, device=x.device)[:, None, None]).sum(1, keepdim=True)
    raise UsageError(f"{dataset.name}: cannot convert {own} channels to {channels}; expected {own} or 1")


def _resize(x: Tensor, height: int, width: int) -> Tensor:
    own_height, own_width = x.shape[2:]
    if (own_height, own_width) == (height, width):
        return x.contiguous()
    # The largest centered window of the target aspect ratio.
    keep_height = min(own_height, max(1, round(own_width * height / width)))
    keep_width = min(own_width, max(1, round(own_height * width / height)))
    top, left = (own_height - keep_height) // 2, (own_width - keep_width) // 2
    x = x[:, :, top : top + keep_height, left : left + keep_width]
    return F.interpolate(x, size=(height, width), mode="bilinear", antialias=True)
