"""Max-pooling that saves a byte of each result: PyTorch's values, places and gradients, bit by bit."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Pool2dGeometry
from lamina.accelerate.training.compressed_activations import compressed_activations, ops, pooling, relu
from lamina.accelerate.training.compressed_activations.bitmap import INTEGER_DTYPES
from lamina.accelerate.training.compressed_activations.formats import has_memory
from lamina.accelerate.training.compressed_activations.window import Pooling, pooling_of

pytestmark = pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")
POOLINGS = [
    Pooling((2, 3, 13, 11), Pool2dGeometry(*sizes))
    for sizes in (
        (2, 2, 2, 2, 0, 0), (3, 3, 2, 2, 0, 0), (3, 3, 2, 2, 1, 1), (3, 2, 1, 3, 1, 1), (1, 4, 3, 2, 0, 2),
        (5, 5, 5, 5, 2, 0),
    )
]  # fmt: skip


def hostile(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers with many equals, and some that are hard to compare."""
    x = torch.randn(*shape).mul(4).round().div(4).relu().to(dtype)
    x.view(-1)[::17] = math.nan
    x.view(-1)[5::19] = -math.inf
    x.view(-1)[7::13] = -0.0
    x[0, 0] = -math.inf
    return x


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Bit by bit."""
    return ours.stride() == theirs.stride() and torch.equal(
        *(y.view(INTEGER_DTYPES[y.itemsize]) for y in (ours, theirs))
    )


@pytest.mark.parametrize("asked", POOLINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_pooling_and_its_gradient_match_torch(
    asked: Pooling, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = asked.geometry
    x, how = hostile(*asked.shape, dtype=dtype), (pool.kernel, pool.stride, pool.padding)
    theirs, indices = torch.ops.aten.max_pool2d_with_indices(x, *how)
    gradient = hostile(*theirs.shape, dtype=dtype)
    expected = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *how, (1, 1), False, indices)
    for few, block in ((ops.INT64_OFFSETS_FROM, ops.POOL_BLOCK), (0, 16)):  # 64-bit offsets; many programs
        monkeypatch.setattr(ops, "INT64_OFFSETS_FROM", few)
        monkeypatch.setattr(ops, "POOL_BLOCK", block)
        y, places = ops.max_pool(x, asked)
        assert same(y, theirs) and torch.equal(pooling.indices(places, asked), indices)
        ours = ops.max_pool_backward(gradient, places, asked)
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


def test_call_arguments_match_torch() -> None:
    x = torch.randn(2, 3, 13, 11)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((2,), {}), ((3, 2), {}), (((3, 2),), {"padding": (1, 0)}), (([3], [2], [1]), {}), ((3, None, 1), {}),
        ((2,), {"stride": ()}), ((13, 16, 2), {}),
    ]  # fmt: skip
    for args, kwargs in calls:
        asked = pooling_of(x, *args, **kwargs)
        assert asked is not None and asked.results == F.max_pool2d(x, *args, **kwargs).shape


@pytest.mark.parametrize(
    ("args", "kwargs", "x"),
    [
        ((2,), {"ceil_mode": True}, torch.zeros(2, 3, 5, 5)), ((2,), {"dilation": 2}, torch.zeros(2, 3, 5, 5)),
        ((2,), {}, torch.zeros(3, 5, 5)), ((2,), {}, torch.zeros(2, 3, 5, 5).mT), ((6,), {}, torch.zeros(2, 3, 5, 5)),
        ((17,), {}, torch.zeros(2, 3, 18, 18)), ((2,), {"padding": 2}, torch.zeros(2, 3, 5, 5)),
        ((2,), {}, torch.zeros(0, 3, 5, 5)), ((2,), {"return_indices": True}, torch.zeros(2, 3, 5, 5)),
    ],
    ids=str,
)  # fmt: skip
def test_unsupported_calls_are_left_to_torch(args: Any, kwargs: Any, x: Tensor) -> None:
    assert pooling_of(x, *args, **kwargs) is None


def test_batched_gradients_match_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu, "is_supported", has_memory)
    x, w = torch.randn(2, 3, 9, 9, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)

    def pooled() -> Tensor:
        return F.max_pool2d(F.conv2d((x * x).relu(), w).relu(), 3, 2, 1)

    with compressed_activations(min_elements=1) as context:
        ours = pooled()
    assert context.statistics.tensors["narrow"] == 1 and context.statistics.tensors["mask"] == 2
    directions, theirs = torch.randn(3, *ours.shape), pooled()
    for one, other in zip(
        *(torch.autograd.grad(y, [x, w], directions, is_grads_batched=True) for y in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_second_derivatives_match_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu, "is_supported", has_memory)
    x = torch.randn(2, 3, 9, 9, requires_grad=True)

    def second(loss: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    def loss() -> Tensor:
        return F.max_pool2d((x * x).relu(), 3, 2, 1).pow(3).sum()

    with compressed_activations(min_elements=1) as context:
        ours = loss()
    assert context.statistics.tensors["narrow"] == 1 and "shape" not in context.statistics.tensors
    torch.testing.assert_close(second(ours), second(loss()), rtol=0, atol=0)
