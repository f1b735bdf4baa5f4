"""Saved activations: the same gradients from fewer bytes, and nothing else changed."""

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.sparsity.saved import saved_activations
from lamina.accelerate.sparsity.saved.bitmap import Bitmap, Mask
from lamina.errors import UsageError


class Net(nn.Module):
    """Convolutions, poolings, a residual connection, an in-place ReLU, dropout and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Sequential(nn.Linear(8 * 16, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = torch.relu(self.norm(self.second(x)) + x)
        return self.head(F.max_pool2d(x, 2).flatten(1))


def gradients(model: nn.Module, x: Tensor, context: Any = None) -> list[Tensor]:
    torch.manual_seed(1)
    leaf = x.clone().requires_grad_()
    if context is None:
        loss = model(leaf).square().sum()
    else:
        with context:
            loss = model(leaf).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [leaf, *model.parameters()])]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bitmaps_give_the_same_gradients_bit_by_bit(dtype: torch.dtype, layout: torch.memory_format) -> None:
    model = Net().to(dtype)
    x = torch.randn(2, 3, 8, 8, dtype=dtype).contiguous(memory_format=layout)
    saved = saved_activations("bitmap", least=1)
    for ours, theirs in zip(gradients(model, x, saved), gradients(model, x), strict=True):
        assert torch.equal(ours, theirs)
    assert saved.held.tensors["mask"] == 3 and saved.held.tensors["bitmap"] >= 3
    assert saved.held.held_bytes < 0.6 * saved.held.dense_bytes


def test_bytes_are_those_of_bits_and_non_zeros() -> None:
    x = torch.zeros(4, 1024)
    x[:, ::8] = 1.0
    x.requires_grad_()
    with saved_activations("bitmap") as saved:
        F.relu(x) @ torch.ones(1024, 2, requires_grad=True)
    mask, values, offsets = 4096 // 8, 4 * 4096 // 8, 8 * 4
    assert saved.held.held_bytes == mask + (mask + values + offsets)
    assert saved.held.dense_bytes == 2 * 4 * 4096
    assert saved.held.tensors == {"mask": 1, "bitmap": 1}


def test_what_is_saved_twice_is_kept_once() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    weights = [torch.randn(64, 8, requires_grad=True) for _ in range(2)]
    with saved_activations() as saved:
        y = F.relu(x)
        loss = sum((y @ w).sum() for w in weights)
    assert saved.held.tensors == {"mask": 1, "bitmap": 1}
    ours = torch.autograd.grad(loss, [x, *weights])
    theirs = torch.autograd.grad(sum((F.relu(x) @ w).sum() for w in weights), [x, *weights])
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_ellpack_rounds_to_float16_and_no_more() -> None:
    model, x = Net(), torch.randn(2, 3, 8, 8)
    saved = saved_activations("ellpack", least=1)
    for ours, theirs in zip(gradients(model, x, saved), gradients(model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3 * float(theirs.abs().max()))
    assert saved.held.tensors["ellpack"] >= 1


def test_dense_tensors_stay_as_they_are() -> None:
    x, w = torch.rand(64, 64).requires_grad_(), torch.randn(64, 8, requires_grad=True)
    with saved_activations() as saved:
        loss = (F.relu(x) @ w).square().sum() + x.exp().sum()
    assert saved.held.tensors == {"mask": 1, "dense": 1}
    ours = torch.autograd.grad(loss, [x, w])
    theirs = torch.autograd.grad((F.relu(x) @ w).square().sum() + x.exp().sum(), [x, w])
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_small_tensors_and_other_functions_are_left_alone() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    with saved_activations() as saved:
        loss = (F.relu(x) @ x).tanh().sum()
    assert saved.held.tensors == {}
    assert len(torch.autograd.grad(loss, [x])) == 1


def test_changed_activations_are_told_apart() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 8, requires_grad=True)

    def step() -> Tensor:
        y = F.relu(x) * 1.0
        y.relu_()
        first = y @ w
        z = F.relu(y - 0.5)
        return (first + z @ w).sum()

    with saved_activations():
        loss = step()
    ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, step()))
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def forms_alive() -> int:
    gc.collect()
    return sum(type(one) in (Mask, Bitmap) for one in gc.get_objects())


def test_memory_goes_with_the_graph() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 8, requires_grad=True)
    before = forms_alive()
    with saved_activations():
        loss = (F.relu(x) @ w).sum()
    assert forms_alive() == before + 2
    torch.autograd.grad(loss, [x, w])
    assert forms_alive() == before


def test_an_unknown_kind_is_told() -> None:
    kind: Any = "bitmaps"
    with pytest.raises(UsageError, match="did you mean 'bitmap'"):
        saved_activations(kind)
