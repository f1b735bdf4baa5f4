"""What each of two processes checks; `test_parallel` starts them."""

import copy
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.accelerate.methods.circulant.parallel import BlockColwiseParallel, BlockRowwiseParallel
from lamina.errors import UsageError


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model_parallel(mesh)
    data_parallel("ddp")
    data_parallel("fsdp")
    refusals(mesh)
    dist.barrier()
    if dist.get_rank() == 0:
        sys.stdout.write("equal")
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
