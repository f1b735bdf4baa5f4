"""Distributed training processes with ``torch.distributed``."""

from __future__ import annotations

import torch
import torch.distributed as dist


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
