"""Distributed training processes with ``torch.distributed``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its default arguments would keep a process group that exists at its import
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

GradientHook = Callable[[Any, Any], Any]
"""A communication hook of DistributedDataParallel: of a state, here None, and a bucket of gradients."""

Parallel = Literal["ddp", "fsdp"]
"""DistributedDataParallel, or FSDP2: each process stores a part of the weights, gradients and optimizer states."""


def join_processes(device: torch.device) -> None:
    """Join the process group that ``torchrun`` started, with NCCL on GPUs and gloo on CPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def leave_processes() -> None:
    """Leave the process group, if this process is in one.

    Its threads end here: one that still frees a tensor while Python exits would abort the process.
    """
    if dist.is_initialized():
        if "torch.distributed.tensor" in sys.modules:  # its caches hold device meshes, and these the process group
            from torch.distributed.tensor.debug import _clear_sharding_prop_cache

            _clear_sharding_prop_cache()
        gc.collect()  # a DistributedDataParallel has reference cycles and holds the process group
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


def shard(network: nn.Module, device: torch.device) -> None:
    """Keep a part of each parameter in this process, by FSDP2; gradients are averaged over all.

    The network is one group: a pass gathers all of its weights.
    """
    from torch.distributed.fsdp import fully_shard

    fully_shard(network, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))


def gathered(tensor: Tensor) -> Tensor:
    """A tensor whole, of which each process may store a part: all have to call it."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def sharded_as(tensor: Tensor, other: Tensor | None) -> Tensor:
    """The part of a whole tensor that this process stores, if it stores a part of ``other``, of the same shape."""
    if other is None or not hasattr(other, "full_tensor"):  # as in `gathered`: one process need not import DTensor
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
