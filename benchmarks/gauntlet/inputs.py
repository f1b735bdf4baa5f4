"""Inputs that no shape describes."""

from __future__ import annotations

from typing import Any

import torch


def detection(batch: int) -> tuple[Any, ...]:
    """Images in a list, and their boxes, labels, masks and keypoints, as torchvision's detectors train on them."""
    images = [torch.rand(3, 96, 96) for _ in range(batch)]
    targets = [
        {
            "boxes": torch.tensor([[8.0, 8.0, 60.0, 70.0], [20.0, 10.0, 90.0, 80.0]]),
            "labels": torch.tensor([1, 1]),
            "masks": torch.ones(2, 96, 96, dtype=torch.uint8),
            "keypoints": torch.tensor([[[30.0, 30.0, 1.0]] * 17] * 2),
        }
        for _ in range(batch)
    ]
    return images, targets
