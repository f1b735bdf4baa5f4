"""What each of two processes checks; `test_parallel` starts them."""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from lamina import run
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.accelerate.methods.circulant.parallel import BlockColwiseParallel, BlockRowwiseParallel
from lamina.errors import UsageError
from lamina.spec.training import Training


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model_parallel(mesh)
    data_parallel("ddp")
    data_parallel("fsdp")
    resumed(folder)
    refusals(mesh)
    dist.barrier()
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = ((12, 16), (16, 10))
    first, second = (BlockCirculantLinear(*size, 4, signs=True, impl="reference").double() for size in sizes)
    return nn.Sequential(first, nn.ReLU(), second)


def steps(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two steps of SGD; the gradient of the input."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        leaf = x.clone().requires_grad_()
        model(leaf).square().mean().backward()
        optimizer.step()
    assert leaf.grad is not None
    return leaf.grad


def part(layer: nn.Module) -> torch.Tensor:
    weight = layer.get_parameter("weight")
    assert isinstance(weight, DTensor)
    local: torch.Tensor = weight.to_local()
    return local


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def model_parallel(mesh: DeviceMesh) -> None:
    """Every process has the same rows and half of the blocks."""
    torch.manual_seed(1)
    x, alone = torch.randn(3, 12, dtype=torch.float64), network()
    ours = copy.deepcopy(alone)
    parallelize_module(ours, mesh, {"0": BlockColwiseParallel(), "2": BlockRowwiseParallel()})
    assert [part(layer).shape for layer in (ours[0], ours[2])] == [(2, 3, 4), (3, 2, 4)]
    torch.testing.assert_close(ours(x), alone(x))
    torch.testing.assert_close(steps(ours, x), steps(alone, x))
    compare(ours, alone)


def data_parallel(how: str) -> None:
    """Every process has half of the rows and all blocks, or with FSDP2 stores half of them."""
    torch.manual_seed(2)
    x, alone = torch.randn(4, 12, dtype=torch.float64), network()
    ours = copy.deepcopy(alone)
    model: nn.Module = DistributedDataParallel(ours) if how == "ddp" else ours
    if how == "fsdp":
        fully_shard(ours)
    steps(model, x[2 * dist.get_rank() :][:2])
    steps(alone, x)
    compare(ours, alone)


def resumed(folder: Path) -> None:
    """FSDP2, interrupted and continued from its checkpoint, ends where DistributedDataParallel does."""
    settings = Training(epochs=2, batch=4, optimizer="adamw", learning_rate=0.01, warmup_steps=0, clip_norm=1.0)
    cpu = torch.device("cpu")

    def batches(epoch: int, start: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(2 * epoch + dist.get_rank())
        return [(torch.randn(2, 12, dtype=torch.float64), torch.tensor([0, 1])) for _ in range(2)][start:]

    def train(model: nn.Module, **more: Any) -> Iterator[run.Progress]:
        return run.train(model, settings, batches, lambda: batches(9, 0), 2, cpu, report_every=1, **more)

    together, ours = network(), network()
    losses = [state.train_loss for state in train(together)]
    more: dict[str, Any] = {"parallel": "fsdp", "checkpoint": folder / "state.safetensors"}
    for state in train(ours, **more):
        if state.epoch:  # the first epoch is saved
            break
    dist.barrier()
    saved = Path(more["checkpoint"]).read_bytes()
    dist.barrier()
    for how in ("fsdp", "ddp"):  # the checkpoint is whole
        again, path = network(), folder / f"{how}{dist.get_rank()}.safetensors"
        path.write_bytes(saved)
        rest = [state.train_loss for state in train(again, parallel=how, checkpoint=path, resume=True)]
        torch.testing.assert_close(rest, losses[2:])
        compare(again, together)


def compare(ours: nn.Module, alone: nn.Module) -> None:
    for (name, mine), other in zip(ours.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(mine).detach(), other.detach(), msg=name)


def refusals(mesh: DeviceMesh) -> None:
    for layer, style, text in (
        (BlockCirculantLinear(12, 10, 4), BlockColwiseParallel(), "output features: expected a multiple of 4 x 2"),
        (BlockCirculantLinear(12, 8, 4), BlockRowwiseParallel(), "input features: expected a multiple of 4 x 2"),
        (BlockCirculantConv2d(8, 8, 1, block_size=4), BlockColwiseParallel(), "got BlockCirculantConv2d"),
    ):
        with pytest.raises(UsageError, match=text):
            parallelize_module(layer, mesh, style)


if __name__ == "__main__":
    main()
