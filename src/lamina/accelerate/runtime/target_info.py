"""What a device can do that kernels are chosen and launched by."""

from __future__ import annotations

from functools import cache

import torch

from lamina.accelerate.common.tiling import SHARED

LEAST_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have anywhere."""


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may have there; off the GPU, those of the GPU that sizes are made for."""
    if device.type != "cuda":
        return SHARED
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", LEAST_SHARED))


@cache
def can_wait(device: torch.device) -> bool:
    """Whether its kernels can wait for those in front of them, so that they may be launched while these end."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device)[0] >= 9
