"""Properties of a device that decide how kernels are chosen and launched."""

from __future__ import annotations

from functools import cache

import torch

from lamina.accelerate.common.tiling import SHARED_MEMORY

MIN_SHARED_MEMORY = 48 * 1024
"""Bytes of shared memory that a block may use on any device."""


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block may use; off the GPU, those of the GPU that tiles are tuned for."""
    if device.type != "cuda":
        return SHARED_MEMORY
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", MIN_SHARED_MEMORY))


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether it has programmatic dependent launch: a kernel may start while the one in front of it ends."""
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    return nvidia and torch.cuda.get_device_capability(device)[0] >= 9
