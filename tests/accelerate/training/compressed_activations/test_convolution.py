"""Convolutions that let go of their input: PyTorch's gradients, bit by bit, from fewer maps at a time."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.training.compressed_activations import compressed_activations, convolution, relu
from lamina.accelerate.training.compressed_activations.bitmap import Bitmap
from lamina.accelerate.training.compressed_activations.context import CompressedActivations, PendingMap
from lamina.accelerate.training.compressed_activations.formats import has_memory

pytestmark = pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels pack maps that are not on a GPU, too, and no map is too small."""
    monkeypatch.setattr(relu, "is_supported", has_memory)
    monkeypatch.setattr(convolution, "MIN_SPLIT_BYTES", 1)


def parts(*sizes: int, groups: int = 1, bias: bool = True) -> list[Tensor]:
    """An input, a weight and a bias."""
    weight = torch.randn(6, 4 // groups, 3, 2, requires_grad=True)
    return [torch.randn(2, 4, *sizes, requires_grad=True), weight, *[torch.randn(6, requires_grad=True)] * bias]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, ...]]:
    """Which gradients each call makes."""
    calls, derived = [], convolution._derived

    def spy(*args: Any) -> Any:
        calls.append(args[-1])
        assert args[-1][1] or args[1].untyped_storage().nbytes() <= args[1].itemsize or not args[1].is_contiguous()
        return derived(*args)

    monkeypatch.setattr(convolution, "_derived", spy)
    return calls


@pytest.mark.parametrize(
    ("bias", "how"),
    [
        (True, {}), (False, {"padding": 1}), (True, {"stride": (2, 1), "padding": (1, 2), "dilation": 2}),
        (True, {"groups": 2, "stride": [2]}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_match_torch(
    given: list[tuple[bool, ...]], bias: bool, how: dict[str, Any], layout: torch.memory_format
) -> None:
    leaves = parts(9, 8, groups=how.get("groups", 1), bias=bias)

    def loss() -> Tensor:
        x, *others = leaves
        return F.conv2d(F.relu(x.contiguous(memory_format=layout)), *others, **how).square().sum()

    with compressed_activations(min_elements=1) as context:
        ours = loss()
    assert context.statistics.tensors["bitmap"] == 1
    for mine, theirs in zip(*(torch.autograd.grad(one, leaves) for one in (ours, loss())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
        assert mine.stride() == theirs.stride()
    assert given == [(False, True, bias), (True, False, False)]


def test_the_input_is_freed_before_its_gradient_is_allocated(
    given: list[tuple[bool, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[PendingMap] = []
    begun = CompressedActivations._begin_packing

    def spy(context: CompressedActivations, x: Tensor, bits: Tensor | None) -> PendingMap:
        later.append(begun(context, x, bits))
        return later[-1]

    monkeypatch.setattr(CompressedActivations, "_begin_packing", spy)
    (x, w), v = parts(9, 8, bias=False), torch.randn(6, 4, 3, 2, requires_grad=True)
    for keep in (True, False):
        with compressed_activations(min_elements=1) as context:
            y = F.relu(x)
            loss = (F.conv2d(y, w) * F.conv2d(y, v)).sum()
        assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
        loss.backward(retain_graph=keep)
        (held,) = later
        assert isinstance(held.packed, Bitmap) == keep
        if keep:
            loss.backward()
        assert held.packed is None
        later.clear()


def test_inputs_of_several_nodes_are_retained() -> None:
    (x, w), v = parts(9, 8, bias=False), torch.randn(8, requires_grad=True)

    def loss() -> Tensor:
        y = F.relu(x)
        return F.conv2d(y, w).square().sum() + (y * v).square().sum()

    with compressed_activations(min_elements=1) as context:
        ours = loss()
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
    for mine, theirs in zip(*(torch.autograd.grad(one, [x, w, v]) for one in (ours, loss())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_second_derivatives_match_torch() -> None:
    leaves = parts(9, 8)

    def second(loss: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    def loss() -> Tensor:
        return F.conv2d(F.relu(leaves[0]), *leaves[1:]).pow(3).sum()

    with compressed_activations(min_elements=1):
        ours = loss()
    for mine, theirs in zip(second(ours), second(loss()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_small_or_unsaved_inputs_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, _ = parts(9, 8)
    assert convolution.splits(x, w) and not convolution.splits(x, w.detach())
    assert not convolution.splits(x, w, padding="same") and not convolution.splits(x[0], w)
    with torch.autocast(x.device.type, torch.bfloat16):
        assert not convolution.splits(x, w)
    monkeypatch.setattr(convolution, "MIN_SPLIT_BYTES", 4 * x.numel() + 1)
    assert not convolution.splits(x, w)
