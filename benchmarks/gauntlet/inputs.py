"""Inputs that no shape describes."""

from __future__ import annotations

from typing import Any

from lamina.build.models.detection import samples


def detection(batch: int) -> tuple[Any, ...]:
    """Small images in a list, and their objects, as torchvision's detectors train on them."""
    return samples(batch, (3, 96, 96))
