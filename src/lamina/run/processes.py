"""Distributed training processes with ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GradientHook = Callable[[Any, Any], Any]
"""A communication hook of DistributedDataParallel: of a state, here None, and a bucket of gradients."""


def join_processes(device: torch.device) -> None:
    """Join the process group that ``torchrun`` started, with NCCL on GPUs and gloo on CPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def leave_processes() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank_and_world() -> tuple[int, int]:
    """Rank and world size; ``(0, 1)`` without a process group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def data_parallel(network: nn.Module, hook: GradientHook | None = None) -> nn.Module:
    """The network for this process, whose gradients are averaged over all; the network itself without a process group.

    ``hook`` is left out with sparse gradients, for which PyTorch has none.
    """
    if not dist.is_initialized():
        return network
    model = DistributedDataParallel(network)
    sparse = any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse for layer in network.modules())
    if hook is not None and not sparse:
        model.register_comm_hook(None, hook)
    return model
