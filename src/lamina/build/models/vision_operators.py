"""Operators of torchvision in PyTorch, where those that it was compiled with cannot be loaded."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

OPERATORS: list[torch.library.Library] = []
"""What defines them, as long as the process lives."""


def repaired() -> bool:
    """Whether operators were missing that a torchvision compiled for CUDA expects, beside a PyTorch for the CPU.

    They are defined now: non-maximum suppression in PyTorch, its quantized form without an implementation. Pooling of
    regions is replaced where torchvision falls back to a function of its own, which is for compilers.
    """
    if OPERATORS:
        return False
    try:
        importlib.import_module("torchvision")
        return False
    except Exception as error:
        if "torchvision::nms" not in str(error):
            return False
    OPERATORS.append(torch.library.Library("torchvision", "FRAGMENT"))
    for operator in ("nms", "qnms"):
        OPERATORS[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    OPERATORS[0].impl("nms", nms, "CPU")
    for half in [found for found in sys.modules if found.partition(".")[0] in ("torchvision", "timm")]:
        del sys.modules[half]
    with suppress(Exception):  # the package is imported again by whoever needs it, who explains what it raises
        boxes: Any = importlib.import_module("torchvision.ops.boxes")
        pooling: Any = importlib.import_module("torchvision.ops.roi_align")
        boxes._assert_has_ops = lambda: None
        pooling._roi_align = roi_align
    return True


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes that overlap no box of a higher score by more than the threshold, best first.

    Args:
        dets: boxes ``(N, 4)`` as x1, y1, x2, y2.
        scores: ``(N,)``.
        iou_threshold: the intersection over union from above which the lower box is dropped.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order].detach().double().numpy()  # whose operations on few boxes take less time than those of tensors
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).prod(1)
    kept = np.ones(len(boxes), dtype=bool)
    for index in range(len(boxes)):
        if not kept[index]:
            continue
        rest = slice(index + 1, None)
        sides = np.minimum(high[index], high[rest]) - np.maximum(low[index], low[rest])
        shared = sides.clip(min=0).prod(1)
        kept[rest] &= shared <= iou_threshold * (area[index] + area[rest] - shared)
    return order[torch.from_numpy(kept)]


CHUNK = 64
"""Regions that are pooled at a time."""


def roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, height: int, width: int, sampling_ratio: int, aligned: bool
) -> Tensor:
    """Regions of feature maps, pooled to one size (He et al., Mask R-CNN, ICCV 2017): means of bilinear samples.

    The samples of a bin form a grid, so the mean is the product of one along the rows and one along the columns.

    Args:
        x: feature maps ``(N, C, H, W)``.
        rois: ``(K, 5)``: the index of the image, x1, y1, x2, y2.
        spatial_scale: of the coordinates to those of the maps.
        height: of the result ``(K, C, height, width)``.
        width: of the result.
        sampling_ratio: samples of a bin in each direction; as many as it has pixels, if not positive.
        aligned: whether pixels are at half coordinates.
    """
    corners = rois[:, 1:].float() * spatial_scale - (0.5 if aligned else 0.0)
    start, size = corners[:, :2], corners[:, 2:] - corners[:, :2]
    size = size if aligned else size.clamp(min=1)
    columns = _samples(start[:, 0], size[:, 0], x.shape[3], width, sampling_ratio).to(x.dtype)
    rows = _samples(start[:, 1], size[:, 1], x.shape[2], height, sampling_ratio).to(x.dtype)
    order, parts = [], [x.new_zeros(0, x.shape[1], height, width)]
    for image, features in enumerate(x):
        for at in (rois[:, 0] == image).nonzero()[:, 0].split(CHUNK):
            partial = torch.einsum("kph,chw->kpcw", rows[at], features)
            parts.append(torch.einsum("kpcw,kqw->kcpq", partial, columns[at]))
            order.append(at)
    return torch.cat(parts)[torch.cat(order).argsort()] if order else parts[0]


def _samples(start: Tensor, size: Tensor, length: int, bins: int, sampling_ratio: int) -> Tensor:
    """The weight of each pixel in each bin of each region ``(K, bins, length)``, in one direction."""
    number = torch.full_like(size, sampling_ratio) if sampling_ratio > 0 else (size / bins).ceil().clamp(min=1)
    step = torch.arange(int(number.max()) if len(number) else 1, device=size.device)
    bin_ = torch.arange(bins, device=size.device)[:, None]
    start, size, number = (one[:, None, None] for one in (start, size, number))
    at = start + size / bins * (bin_ + (step + 0.5) / number)
    inside = (at >= -1) & (at <= length) & (step < number)
    at = at.clamp(0, length - 1)
    weight = (1 - (at[..., None] - torch.arange(length, device=size.device)).abs()).clamp(min=0)
    return (weight * inside[..., None]).sum(2) / number
