"""Inputs of torchvision's detectors: images in a list, and the objects in them, on which they train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

KEYPOINTS = 17
"""Keypoints of a person (COCO)."""


def is_detector(module: nn.Module) -> bool:
    """Whether a network of torchvision takes images in a list: it resizes them by itself."""
    return type(getattr(module, "transform", None)).__name__ == "GeneralizedRCNNTransform"


def image_shape(module: nn.Module) -> tuple[int, int, int]:
    """The shape that a detector resizes square images to."""
    transform: Any = module.transform
    fixed = transform.fixed_size
    if fixed is not None:
        return (3, fixed[1], fixed[0])
    side = min(transform.min_size[-1], transform.max_size)
    return (3, side, side)


def samples(batch: int, shape: tuple[int, ...]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Random images with two objects each: boxes, labels, masks and keypoints, in pixels.

    Args:
        batch: number of images.
        shape: of an image, ``(channels, height, width)``.
    """
    height, width = shape[-2:]
    scale = torch.tensor([width, height, width, height])
    boxes = torch.tensor([[0.08, 0.08, 0.62, 0.72], [0.2, 0.1, 0.94, 0.83]]) * scale
    center = torch.stack([boxes[:, 0] + boxes[:, 2], boxes[:, 1] + boxes[:, 3], torch.full((2,), 2.0)], 1) / 2
    images = [torch.rand(shape) for _ in range(batch)]
    targets = [
        {
            "boxes": boxes.clone(),
            "labels": torch.ones(2, dtype=torch.int64),
            "masks": torch.ones(2, height, width, dtype=torch.uint8),
            "keypoints": center[:, None].repeat(1, KEYPOINTS, 1),
        }
        for _ in range(batch)
    ]
    return images, targets
