"""Model parallelism of block-circulant layers: each process holds some of the blocks.

The dissertation names it as future work: a block row needs no other. Both styles are plans for
`torch.distributed.tensor.parallel.parallelize_module`, as PyTorch's own ``ColwiseParallel`` and ``RowwiseParallel`` are
for dense layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear, activation_before, has_relu
from lamina.errors import UsageError

__all__ = ["BlockColwiseParallel", "BlockRowwiseParallel"]


class BlockColwiseParallel(ParallelStyle):
    """Shards block rows, and with them the output features: ``(..., in)`` to ``(..., out / processes)``.

    The input is the same in every process. The backward pass adds up its gradients.

    Example::

        mesh = init_device_mesh("cuda", (2,))
        plan = {"fc6": BlockColwiseParallel(), "fc7": BlockRowwiseParallel()}
        model = parallelize_module(model, mesh, plan)

    Raises:
        UsageError: the module is no `BlockCirculantLinear`, or its block rows do not divide among the processes.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layer = _linear(module)
        _require_divides("output features", layer.out_features, layer.block_size, device_mesh)
        _shard(layer, "weight", device_mesh, 0)
        _shard(layer, "bias", device_mesh, 0)
        layer.__class__ = _Colwise
        return layer


class BlockRowwiseParallel(ParallelStyle):
    """Shards block columns, and with them the input features: ``(..., in / processes)`` to ``(..., out)``.

    The input of a process is its features, as `BlockColwiseParallel` leaves them. The forward pass adds up outputs.

    Raises:
        UsageError: the module is no `BlockCirculantLinear`, or its block columns do not divide among the processes.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        layer = _linear(module)
        _require_divides("input features", layer.in_features, layer.block_size, device_mesh)
        _shard(layer, "weight", device_mesh, 1)
        _shard(layer, "bias", device_mesh, None)
        layer.__class__ = _Rowwise
        return layer


class _Colwise(BlockCirculantLinear):
    """Computes the block rows of this process."""

    def forward(self, input: Tensor) -> Tensor:
        mesh = _mesh(self)
        # The same input feeds every process, so its gradient is the sum of theirs.
        x = DTensor.from_local(input, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        bias = None if self.bias is None else _local(self.bias)
        features = self.out_features // mesh.size()
        return functional.linear(
            x, _local(self.weight), bias, out_features=features, signs=self.signs,
            input_activation=activation_before(self), relu=has_relu(self), impl=self.impl, fallback=self.fallback,
        )  # fmt: skip


class _Rowwise(BlockCirculantLinear):
    """Computes with the block columns of this process, and adds up."""

    def forward(self, input: Tensor) -> Tensor:
        weight = _local(self.weight)
        part = functional.linear(
            input, weight, None, out_features=self.out_features, signs=self.signs,
            input_activation=activation_before(self), impl=self.impl, fallback=self.fallback,
        )  # fmt: skip
        whole = DTensor.from_local(part, _mesh(self), [Partial()], run_check=False).redistribute(
            placements=[Replicate()]
        )
        y = whole.to_local()
        y = y if self.bias is None else y + _local(self.bias)
        return torch.relu(y) if has_relu(self) else y


def _linear(module: nn.Module) -> BlockCirculantLinear:
    if type(module) is not BlockCirculantLinear:
        raise UsageError(f"expected a BlockCirculantLinear that is not parallel yet, got {type(module).__name__}")
    return module


def _require_divides(what: str, size: int, block_size: int, mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise UsageError(f"expected a device mesh of one dimension, got {mesh.ndim}: pass mesh['tp'], for example")
    if size % (block_size * mesh.size()):
        raise UsageError(
            f"{what}: expected a multiple of {block_size} x {mesh.size()} (block size and processes), got {size}"
        )


def _shard(layer: BlockCirculantLinear, name: str, mesh: DeviceMesh, dim: int | None) -> None:
    """Replace a parameter by its part in this process, or by a copy that all processes keep equal."""
    whole = getattr(layer, name)
    if whole is not None:
        placement = Replicate() if dim is None else Shard(dim)
        part = distribute_tensor(whole.detach(), mesh, [placement])
        setattr(layer, name, nn.Parameter(part, requires_grad=whole.requires_grad))


def _local(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    local: Tensor = parameter.to_local()
    return local


def _mesh(layer: nn.Module) -> DeviceMesh:
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    assert isinstance(weight, DTensor)
    return weight.device_mesh
