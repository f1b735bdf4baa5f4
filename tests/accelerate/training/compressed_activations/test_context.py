"""Compressed activations: the same gradients from fewer bytes, and no other effect."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from lamina.accelerate.training.compressed_activations import (
    CompressedActivations,
    CompressedForward,
    compressed_activations,
    ops,
    relu,
)
from lamina.accelerate.training.compressed_activations import context as module
from lamina.accelerate.training.compressed_activations.bitmap import Bitmap
from lamina.accelerate.training.compressed_activations.formats import Narrow, has_memory
from lamina.errors import LaminaError, UsageError


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
    model.zero_grad()
    loss.backward()
    found = [leaf.grad, *(parameter.grad for parameter in model.parameters())]
    return [loss.detach(), *(one for one in found if one is not None)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bitmap_gradients_are_bitwise_identical(dtype: torch.dtype, layout: torch.memory_format) -> None:
    model = Net().to(dtype)
    x = torch.randn(2, 3, 8, 8, dtype=dtype).contiguous(memory_format=layout)
    context = compressed_activations("bitmap", min_elements=1)
    for ours, theirs in zip(gradients(model, x, context), gradients(model, x), strict=True):
        assert torch.equal(ours, theirs)
    tensors = context.statistics.tensors
    assert (tensors["mask"], tensors["shape"], tensors["narrow"]) == (3, 1, 1) and tensors["bitmap"] >= 2
    assert context.statistics.held_bytes < 0.75 * context.statistics.dense_bytes


def test_compressed_bytes_are_bits_and_nonzeros() -> None:
    x = torch.zeros(4, 1024)
    x[:, ::8] = 1.0
    x.requires_grad_()
    with compressed_activations("bitmap") as context:
        F.relu(x) @ torch.ones(1024, 2, requires_grad=True)
    mask, values, offsets = 4096 // 8, 4 * 4096 // 8, 8
    assert context.statistics.held_bytes == mask + values + offsets, "the ReLU's bits are those of the non-zeros"
    assert context.statistics.dense_bytes == 4 * 4096, "autograd holds one map for both"
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels pack maps that are not on a GPU, too."""
    monkeypatch.setattr(relu, "is_supported", has_memory)


@pytest.mark.usefixtures("by_kernels", "where_kernels_run")
def test_pending_maps_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = []
    settle = CompressedActivations._settle

    def spy(context: CompressedActivations) -> None:
        waiting.append(len(context._waiting))
        settle(context)

    monkeypatch.setattr(CompressedActivations, "_settle", spy)
    monkeypatch.setattr(ops.Packing, "reported", property(lambda self: False))
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    model, x = feature_network(nn.BatchNorm2d(8)), torch.randn(4, 3, 12, 12)
    context = compressed_activations("bitmap", min_elements=64)
    for _ in range(2):
        for ours, theirs in zip(gradients(model, x, context), gradients(model, x), strict=True):
            assert torch.equal(ours, theirs)
    maps = context.statistics.tensors["bitmap"]
    assert maps >= 4 and waiting == 2 * [*[2] * (maps - 1), 1]


@pytest.mark.usefixtures("by_kernels", "where_kernels_run", "poisoned_empty")
@pytest.mark.parametrize("inplace", [False, True])
def test_maps_with_gaps_and_negative_zeros_give_the_same_gradients(inplace: bool) -> None:
    wide, w = torch.randn(3, 16, 20, 4), torch.randn(16, 16, 3, 3, requires_grad=True)
    wide[:, :, ::3] = -0.0
    wide.requires_grad_()

    def loss() -> Tensor:
        gaps = (wide * 1)[..., :3]
        return F.conv2d(F.relu(gaps, inplace), w).square().sum()

    with compressed_activations(min_elements=64) as context:
        ours = loss()
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
    for one, other in zip(*(torch.autograd.grad(each, [wide, w]) for each in (ours, loss())), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("by_kernels", "where_kernels_run")
def test_capacity_scales_with_the_map() -> None:
    context, w = compressed_activations(), torch.randn(64, 64, requires_grad=True)
    for rows in (256, 64):
        x = torch.full((rows, 64), -1.0)
        x[::4] = 1
        with context:
            loss = (F.relu(x.requires_grad_()) @ w).sum()
        loss.backward()
    assert context.statistics.held_bytes == 4096 // 8 + 8 + 4 * (1024 + 1024 // module.HEADROOM)


@pytest.mark.usefixtures("by_kernels", "where_kernels_run", "poisoned_empty")
def test_maps_over_capacity_are_packed_again() -> None:
    w, context, capacity = torch.randn(64, 64, requires_grad=True), compressed_activations("bitmap"), 0
    for share in (0.2, 0.8, 0.1, 0.1, 0.4):
        x = (torch.rand(64, 64) - 1 + share).requires_grad_()
        with context:
            loss = (F.relu(x) @ w).sum()
        ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, (F.relu(x) @ w).sum()))
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
        nonzeros = int((x > 0).sum())
        assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
        assert context.statistics.held_bytes == 4096 // 8 + 8 + 4 * max(nonzeros, capacity)
        capacity = nonzeros + nonzeros // module.HEADROOM


@pytest.mark.usefixtures("by_kernels", "where_kernels_run")
def test_captured_passes_do_not_synchronize_and_report_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    w, context = torch.randn(64, 64, requires_grad=True), compressed_activations("bitmap")

    def run(share: float, captured: bool) -> tuple[Tensor, Tensor, Tensor]:
        monkeypatch.setattr(module, "capturing", lambda: captured)
        x = (torch.rand(64, 64) - 1 + share).requires_grad_()
        with context:
            loss = (F.relu(x) @ w).sum()
        assert not (captured and context._waiting)
        ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, (F.relu(x) @ w).sum()))
        assert torch.equal(ours[0], theirs[0])
        return (x > 0).sum(), ours[1], theirs[1]

    with pytest.raises(UsageError, match="expected an eager pass before capture"):
        run(0.5, captured=True)
    nonzeros, *_ = run(0.5, captured=False)
    assert torch.equal(*run(0.5, captured=True)[1:])
    capacity = int(nonzeros) + int(nonzeros) // module.HEADROOM
    assert context.statistics.held_bytes == 4096 // 8 + 8 + 4 * (capacity + capacity // module.GRAPH_HEADROOM)
    context.check()
    assert run(0.9, captured=True)[1].isnan().any()
    with pytest.raises(LaminaError, match=r"map 1 has \d+ non-zeros, but its CUDA graph has capacity for \d+"):
        context.check()
    run(1.0, captured=False)
    assert torch.equal(*run(0.9, captured=True)[1:]) and context.statistics.tensors == {"mask": 1, "kept": 1}


@pytest.mark.usefixtures("by_kernels", "where_kernels_run")
def test_negative_zeros_are_restored_although_the_mask_excludes_them() -> None:
    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    x[3, 5] = -0.0
    x.requires_grad_()
    with compressed_activations() as context:
        loss = (nn.functional.relu(x) @ w).sum()
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
    ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, (F.relu(x) @ w).sum()))
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("by_kernels", "where_kernels_run")
def test_a_pending_map_changed_in_place_raises() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with compressed_activations() as context:
        y = F.relu(x)
        loss = (y @ w).sum()
        y.mul_(2)
    assert context.statistics.tensors == {"mask": 1, "kept": 1}
    with pytest.raises(UsageError, match="at version 0, got version 1"):
        loss.backward()


@pytest.mark.usefixtures("poisoned_empty", "where_kernels_run")
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3),
        nn.AdaptiveAvgPool2d(1), nn.Sequential(nn.Flatten(2), nn.MaxPool1d(3)),
    ],
    ids=str,
)  # fmt: skip
def test_pooling_reads_no_element_of_its_input(pool: nn.Module) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 4, 9, 10).contiguous(memory_format=layout).requires_grad_()
        with compressed_activations(min_elements=1) as context:
            loss = pool(F.relu(x)).square().sum()
        ours, theirs = (torch.autograd.grad(one, x)[0] for one in (loss, pool(F.relu(x)).square().sum()))
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()
        assert "bitmap" not in context.statistics.tensors or context.statistics.tensors["bitmap"] == 1


def test_pooling_indices_fit_into_fewer_bytes() -> None:
    for size, kind in ((256, torch.uint16), (257, torch.int32)):
        places = torch.tensor([[0, 7], [size * size - 1, 3]]).T
        held = Narrow.of(places, size * size)
        assert held.values.dtype == kind and held.nbytes == 4 * kind.itemsize
        assert torch.equal(held.get(), places) and held.get().stride() == places.stride()


def test_a_map_saved_twice_is_compressed_once() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    weights = [torch.randn(64, 8, requires_grad=True) for _ in range(2)]
    with compressed_activations() as context:
        y = F.relu(x)
        loss = sum((y @ w).sum() for w in weights)
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
    ours = torch.autograd.grad(loss, [x, *weights])
    theirs = torch.autograd.grad(sum((F.relu(x) @ w).sum() for w in weights), [x, *weights])
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_ellpack_rounds_to_float16() -> None:
    model, x = Net(), torch.randn(2, 3, 8, 8)
    context = compressed_activations("ellpack", min_elements=1)
    for ours, theirs in zip(gradients(model, x, context), gradients(model, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3 * float(theirs.abs().max()))
    assert context.statistics.tensors["ellpack"] >= 1


def test_dense_tensors_stay_uncompressed() -> None:
    x, w = torch.rand(64, 64).requires_grad_(), torch.randn(64, 8, requires_grad=True)
    with compressed_activations() as context:
        loss = (F.relu(x) @ w).square().sum() + x.exp().sum()
    assert context.statistics.tensors == {"mask": 1, "kept": 1}
    assert context.statistics.held_bytes == context.statistics.dense_bytes + 4096 // 8
    ours = torch.autograd.grad(loss, [x, w])
    theirs = torch.autograd.grad((F.relu(x) @ w).square().sum() + x.exp().sum(), [x, w])
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_small_tensors_and_other_functions_are_unaffected() -> None:
    x = torch.randn(8, 8, requires_grad=True)
    with compressed_activations() as context:
        loss = (F.relu(x) @ x).tanh().sum()
    assert context.statistics.tensors == {}
    assert len(torch.autograd.grad(loss, [x])) == 1


def test_changed_activations_are_distinguished() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 8, requires_grad=True)

    def step() -> Tensor:
        y = F.relu(x) * 1.0
        y.relu_()
        first = y @ w
        z = F.relu(y - 0.5)
        return (first + z @ w).sum()

    with compressed_activations():
        loss = step()
    ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, step()))
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_compressed_forward_runs_in_its_context() -> None:
    context, model = compressed_activations(), nn.Sequential(nn.ReLU(), nn.Linear(64, 8))
    x = torch.randn(64, 64, requires_grad=True)
    ours, theirs = CompressedForward(model, context)(x), model(x)
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1} and list(
        CompressedForward(model, context).parameters()
    ) == [*model.parameters()]
    assert torch.equal(*(torch.autograd.grad(one.square().sum(), x)[0] for one in (ours, theirs)))


def bitmaps_alive() -> int:
    gc.collect()
    return sum(type(one) is Bitmap for one in gc.get_objects())


def test_memory_is_freed_with_the_graph() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 8, requires_grad=True)
    before = bitmaps_alive()
    with compressed_activations():
        loss = (F.relu(x) @ w).sum()
    assert bitmaps_alive() == before + 1
    torch.autograd.grad(loss, [x, w])
    assert bitmaps_alive() == before


def test_an_unknown_kind_raises() -> None:
    kind: Any = "bitmaps"
    with pytest.raises(UsageError, match="did you mean 'bitmap'"):
        compressed_activations(kind)


def feature_network(*norm: nn.Module) -> nn.Module:
    """A small network of AlexNet's and VGG's kind."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *norm, nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(True),
        nn.MaxPool2d(2), nn.Dropout2d(0.2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(144, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, 5),
    )  # fmt: skip


class Checkpointed(nn.Module):
    """The first half of a network computed again in the backward pass."""

    def __init__(self, layers: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = layers, reentrant

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.layers, nn.Sequential)
        head, middle, tail = self.layers[:2], self.layers[2:6], self.layers[6:]
        return tail(checkpoint(middle, head(x), use_reentrant=self.reentrant))


class Autocast(nn.Module):
    """Matrix products of a network in bfloat16."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)


@pytest.mark.parametrize("kind", ["bitmap", "ellpack"])
@pytest.mark.parametrize(
    "make",
    [
        feature_network,
        lambda: feature_network(nn.BatchNorm2d(8)),
        lambda: Checkpointed(feature_network(), reentrant=False),
        lambda: Checkpointed(feature_network(), reentrant=True),
        lambda: Autocast(feature_network()),
    ],
    ids=["in place", "normed", "checkpoint", "reentrant checkpoint", "autocast"],
)
def test_networks_train_the_same(make: Callable[[], nn.Module], kind: Any) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 3, 12, 12)
    context = compressed_activations(kind, min_elements=64)
    for ours, theirs in zip(gradients(model, x, context), gradients(model, x), strict=True):
        if kind == "bitmap":
            assert torch.equal(ours, theirs)
        else:
            torch.testing.assert_close(ours, theirs, rtol=4e-3, atol=4e-3 * float(theirs.abs().max()))
    assert context.statistics.tensors[kind] >= 2
    assert kind == "ellpack" or context.statistics.held_bytes < context.statistics.dense_bytes


def test_compiled_parts_are_unaffected(capsys: pytest.CaptureFixture[str]) -> None:
    head, tail = feature_network()[:4], nn.Conv2d(8, 4, 3)
    compiled, x = torch.compile(head, backend="aot_eager"), torch.randn(2, 3, 12, 12)
    found = []
    for first, context in ((compiled, compressed_activations(min_elements=64)), (head, nullcontext())):
        head.zero_grad()
        with context:
            loss = F.relu(tail(first(x))).square().sum()
        found.append(torch.autograd.grad(loss, [*head.parameters(), *tail.parameters()]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert "Exception ignored" not in capsys.readouterr().err


def test_second_derivatives_are_the_same() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)

    def second(loss: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(loss, [x, w], create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), [x, w])

    with compressed_activations():
        ours = (F.relu(x) @ w).square().sum()
    assert all(torch.equal(*pair) for pair in zip(second(ours), second((F.relu(x) @ w).square().sum()), strict=True))


@pytest.mark.parametrize("kind", ["bitmap", "ellpack"])
def test_extreme_values_are_restored(kind: Any) -> None:
    x = torch.randn(64, 64).half().float()
    x[0, :5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0])
    x[:, 7] = 0
    w = torch.randn(64, 64, requires_grad=True)
    grads = []
    for context in (compressed_activations(kind), nullcontext()):
        leaf = x.clone().requires_grad_()
        with context:
            loss = (F.relu(leaf) @ w).sum()
        grads.append(torch.autograd.grad(loss, [leaf, w]))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fill", [-1.0, 1.0])
@pytest.mark.parametrize("shape", [(64, 64), (0, 64), (64, 0), (4096,)], ids=str)
def test_empty_and_full_maps(shape: tuple[int, ...], fill: float) -> None:
    for kind in ("bitmap", "ellpack"):
        x = torch.full(shape, fill, requires_grad=True)
        with compressed_activations(kind, min_elements=1) as context:
            loss = F.relu(x).square().sum()
        assert torch.equal(torch.autograd.grad(loss, x)[0], torch.full(shape, max(2 * fill, 0.0)))
        assert bool(context.statistics.tensors) == bool(x.numel())


def sparse_product(x: Tensor, w: Tensor) -> Tensor:
    return torch.sparse.mm(w.to_sparse(), F.relu(x))


def views(x: Tensor, w: Tensor) -> Tensor:
    y = F.relu(x)
    return y[::2].mT @ w[::2] + y.view(32, 2, 64).sum(1).repeat(2, 1) @ w + F.linear(y.view(4, 16, 64), w).view(64, 64)


@pytest.mark.parametrize("function", [sparse_product, views])
def test_sparse_tensors_and_views_are_supported(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with compressed_activations(min_elements=1):
        loss = function(x, w).square().sum()
    ours, theirs = (torch.autograd.grad(one, [x, w]) for one in (loss, function(x, w).square().sum()))
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_reused_addresses_are_distinguished() -> None:
    # Storages over one buffer: every map has the address, the sizes and the version of the one before it.
    buffer, w = np.zeros((64, 64), np.float32), torch.randn(64, 64, requires_grad=True)
    maps = [np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32) for seed in range(3)]
    places, products = set(), []
    with compressed_activations() as context:
        for one in maps:
            buffer[:] = one
            y = F.relu(torch.from_numpy(buffer), inplace=True)
            places.add((y.data_ptr(), y._version))
            products.append(y @ w)
            del y
    assert len(places) == 1 and context.statistics.tensors["bitmap"] == 3
    expected = sum(torch.from_numpy(one).relu().mT @ torch.ones(64, 64) for one in maps)
    torch.testing.assert_close(torch.autograd.grad(sum(p.sum() for p in products), w)[0], expected)


def test_addresses_of_freed_activations_are_distinguished() -> None:
    buffer, w = np.eye(64, dtype=np.float32), torch.randn(64, 64, requires_grad=True)
    other, later = torch.randn(64, 64), torch.randn(64, 64)
    with compressed_activations():
        y = F.relu(torch.from_numpy(buffer), inplace=True)
        loss = (y @ w).sum()
        y.data = other
        loss = loss + (y @ w).sum()
        z = torch.from_numpy(buffer).copy_(later)
        assert z._version == 1, "as the activation's was"
        loss = loss + (z @ w).sum()
    expected = (torch.eye(64) + other + later).mT @ torch.ones(64, 64)
    torch.testing.assert_close(torch.autograd.grad(loss, w)[0], expected)


def test_a_change_in_place_raises_as_without_the_context() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with compressed_activations():
        y = x.exp()
        loss = y.sum()
        y.mul_(2)
    with pytest.raises(UsageError, match="at version 0, got version 1"):
        loss.backward()


def test_graphs_without_a_backward_pass_are_freed() -> None:
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with compressed_activations():
        loss = (F.relu(x).exp() @ w).softmax(0)
        storage = StorageWeakRef(loss.untyped_storage())
    del loss
    gc.collect()
    assert storage.expired()


def test_exiting_restores_hooks_and_modes() -> None:
    context = compressed_activations()
    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    with (
        pytest.raises(RuntimeError, match="no hooks"),
        torch.autograd.graph.disable_saved_tensors_hooks("no hooks"),
        context,
    ):
        pass
    for _ in range(2):
        with context:
            (F.relu(x) @ w).sum().backward()
        assert context.statistics.tensors == {"mask": 1, "bitmap": 1}
    F.relu(x) @ w
    assert context.statistics.tensors == {"mask": 1, "bitmap": 1}


@pytest.mark.parametrize("min_elements", [0, -1, 1.5, True])
def test_an_invalid_min_elements_raises(min_elements: Any) -> None:
    with pytest.raises(UsageError, match=r"min_elements: expected an integer of at least 1"):
        compressed_activations(min_elements=min_elements)
