"""Bitmaps there and back, by PyTorch and by the kernels, which give the same."""

import math
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from lamina.accelerate.training.compressed_activations import bitmap, kernels, ops
from lamina.spec import Cost

pytestmark = pytest.mark.usefixtures("where_kernels_run")
FLOATS = st.one_of(st.sampled_from([0.0, 0.0, -0.0, math.nan, math.inf]), st.floats(width=32))
WAYS = pytest.mark.parametrize("implementation", [bitmap, ops], ids=["torch", "kernels"])


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(bitmap.INTEGER_DTYPES[x.itemsize])


@given(npst.arrays(np.float32, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9), elements=FLOATS))
def test_tensors_are_restored_bit_by_bit(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    held = bitmap.pack(x)
    assert torch.equal(bits(bitmap.unpack(held)), bits(x))
    stored = array.reshape(-1).view(np.uint32)
    assert np.array_equal(held.bits.numpy(), np.packbits(stored != 0, bitorder="little"))
    assert held.nbytes == held.bits.numel() + 8 * held.offsets.numel() + 4 * int((stored != 0).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_kernels_match_torch(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 57, 23).relu().to(dtype)
    x[0, 0, 0, :4] = torch.tensor([math.nan, -0.0, math.inf, 0.0])
    ours, theirs = ops.pack(x), bitmap.pack(x)
    ends = torch.cat([theirs.offsets[1:], torch.tensor([len(theirs.values)])])
    pieces = zip(ours.offsets, ends - theirs.offsets, strict=True)  # on a GPU blocks come in any order
    ours_in_order = ours._replace(
        offsets=theirs.offsets, values=torch.cat([ours.values[start : start + size] for start, size in pieces])
    )
    for part, mine, other in zip(theirs._fields, ours_in_order, theirs, strict=True):
        assert torch.equal(mine, other) if isinstance(mine, Tensor) else mine == other, part
    if not x.is_cuda:
        assert torch.equal(ours.offsets, theirs.offsets), "the interpreter has blocks come in their order"
    assert torch.equal(bits(ops.unpack(ours)), bits(x))


@pytest.mark.usefixtures("poisoned_empty")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_relu_and_its_derivative_match_torch(dtype: torch.dtype) -> None:
    x, gradient = torch.randn(2, 3, 57, 23).to(dtype), torch.randn(2, 3, 57, 23).to(dtype)
    x[0, 0, 0, :5] = torch.tensor([math.nan, -0.0, math.inf, 0.0, -math.inf])
    gradient[0, 0, 0, 1:3] = torch.tensor([math.nan, -math.inf])
    for layout in (torch.contiguous_format, torch.channels_last):
        mine, theirs = x.contiguous(memory_format=layout), x.contiguous(memory_format=layout).relu()
        y = torch.empty_like(mine)
        kept = ops.relu(mine, y)
        torch.testing.assert_close(y, theirs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(kept, bitmap.mask(theirs)) and torch.equal(ops.relu(y, y), kept)
        expected = torch.ops.aten.threshold_backward(gradient, theirs, 0)
        for implementation in (bitmap, ops):
            ours = implementation.masked(gradient.contiguous(memory_format=layout), kept)
            torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)
            assert ours.stride() == theirs.stride()


def test_doubles_below_float32_range_are_nonzero() -> None:
    x = torch.tensor([1e-60, 0.0, -1e-60, 5e-324], dtype=torch.float64)
    y = torch.empty_like(x)
    assert ops.relu(x, y).tolist() == bitmap.mask(x).tolist() == [0b1001] and y.tolist() == [1e-60, 0.0, 0.0, 5e-324]


def test_nonzeros_over_capacity_are_packed_again() -> None:
    x, counter = torch.randn(10_000).relu(), ops.Counter(torch.empty(0).device)
    for capacity in (10, 10_000, 0):
        counter.clear()
        packing = ops.Packing(counter, capacity)
        begun = packing.begin(x)
        assert begun.values.numel() == capacity and packing.nonzeros() == int((x != 0).sum())
        whole = packing.complete(x, begun)
        assert torch.equal(ops.unpack(whole), x) and packing.nbytes == whole.nbytes
        assert (whole is begun) == (capacity == 10_000) and counter.count.item() == 0


def test_counters_are_reused_once_they_have_reported() -> None:
    counters, device = ops.Counters(min_pending=2), torch.empty(0).device
    first, second, third = (counters.take(device) for _ in range(3))
    assert len({first, second, third}) == 3
    fourth = counters.take(device)
    assert fourth not in (first, second, third), "nobody told"
    first.reported.fill_(5)
    assert first.nonzeros == 5 and counters.take(device) is first and first.nonzeros is None


@WAYS
def test_strides_are_restored(implementation: ModuleType) -> None:
    x = torch.randn(2, 3, 4, 5).relu()
    for view in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(0, 3)):
        back = implementation.unpack(implementation.pack(view))
        assert torch.equal(back, view) and back.stride() == view.stride()
    gaps = torch.stack([x, x], -1)[..., 0]
    back = implementation.unpack(implementation.pack(gaps))
    assert torch.equal(back, gaps) and back.is_contiguous()


@WAYS
@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (), (4097,)], ids=str)
@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_empty_and_full_maps(implementation: ModuleType, fill: float, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, fill)
    held = implementation.pack(x)
    assert torch.equal(implementation.unpack(held), x)
    assert held.values.numel() == (x.numel() if fill else 0)


def test_costs_match_hand_counts() -> None:
    assert kernels.pack_cost(20, 7, 4) == Cost(0, 80, 3 + 28)
