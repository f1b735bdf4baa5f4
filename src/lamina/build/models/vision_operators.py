"""Operators of torchvision in PyTorch, where those that it was compiled with cannot be loaded."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

OPERATORS: list[torch.library.Library] = []
"""What defines them, as long as the process lives."""


def repaired() -> bool:
    """Whether operators were missing that a torchvision compiled for CUDA expects, beside a PyTorch for the CPU.

    They are defined now: non-maximum suppression in PyTorch, its quantized form without an implementation. Pooling of
    regions falls back to torchvision's own function in PyTorch, which is not compiled.
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
        pooling._roi_align = getattr(pooling._roi_align, "__wrapped__", pooling._roi_align)
    return True


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the boxes that overlap no box of a higher score by more than the threshold, best first.

    Args:
        dets: boxes ``(N, 4)`` as x1, y1, x2, y2.
        scores: ``(N,)``.
        iou_threshold: the intersection over union from above which the lower box is dropped.
    """
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept = torch.ones(len(boxes), dtype=torch.bool, device=dets.device)
    for index in range(len(boxes)):
        if not kept[index]:
            continue
        rest = boxes[index + 1 :]
        low, high = torch.maximum(boxes[index, :2], rest[:, :2]), torch.minimum(boxes[index, 2:], rest[:, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        kept[index + 1 :] &= shared <= iou_threshold * (area[index] + area[index + 1 :] - shared)
    return order[kept]
