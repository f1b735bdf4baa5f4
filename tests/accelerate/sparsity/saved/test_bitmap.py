"""Bitmaps there and back, by PyTorch and by the kernels, which give the same."""

import math
from dataclasses import fields
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from lamina.accelerate.sparsity.saved import bitmap, kernels, ops
from lamina.spec import Cost

pytestmark = pytest.mark.usefixtures("where_kernels_run")
FLOATS = st.one_of(st.sampled_from([0.0, 0.0, -0.0, math.nan, math.inf]), st.floats(width=32))
WAYS = pytest.mark.parametrize("way", [bitmap, ops], ids=["torch", "kernels"])


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(bitmap.STORED[x.itemsize])


@given(npst.arrays(np.float32, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9), elements=FLOATS))
def test_a_tensor_comes_back_bit_by_bit(array: np.ndarray) -> None:
    x = torch.from_numpy(array)
    held = bitmap.pack(x)
    assert torch.equal(bits(bitmap.unpack(held)), bits(x))
    stored = array.reshape(-1).view(np.uint32)
    assert np.array_equal(held.bits.numpy(), np.packbits(stored != 0, bitorder="little"))
    assert held.nbytes == held.bits.numel() + 8 * held.offsets.numel() + 4 * int((stored != 0).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_kernels_give_the_same_as_torch(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 17, 13).relu().to(dtype)
    x[0, 0, 0, :4] = torch.tensor([math.nan, -0.0, math.inf, 0.0])
    for pack, make in ((ops.pack, bitmap.pack), (ops.mask, bitmap.mask)):
        ours, theirs = pack(x), make(x)
        assert ours.form == theirs.form
        for part in fields(theirs)[1:]:
            assert torch.equal(getattr(ours, part.name), getattr(theirs, part.name)), part.name
    assert torch.equal(bits(ops.unpack(ops.pack(x))), bits(x))
    assert torch.equal(ops.unmask(ops.mask(x)), bitmap.unmask(bitmap.mask(x)))


@WAYS
def test_a_double_that_no_float_can_hold_is_no_zero(way: ModuleType) -> None:
    x = torch.tensor([1e-60, 0.0, -1e-60, 5e-324], dtype=torch.float64)
    assert way.unmask(way.mask(x)).tolist() == [1.0, 0.0, 0.0, 1.0]


@WAYS
def test_strides_come_back(way: ModuleType) -> None:
    x = torch.randn(2, 3, 4, 5).relu()
    for view in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(0, 3)):
        back = way.unpack(way.pack(view))
        assert torch.equal(back, view) and back.stride() == view.stride()
    gaps = torch.stack([x, x], -1)[..., 0]
    back = way.unpack(way.pack(gaps))
    assert torch.equal(back, gaps) and back.is_contiguous()
    assert torch.equal(way.unmask(way.mask(gaps)), (gaps > 0).float())


@WAYS
@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (), (1025,)], ids=str)
@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_nothing_and_everything(way: ModuleType, fill: float, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, fill)
    held = way.pack(x)
    assert torch.equal(way.unpack(held), x)
    assert held.values.numel() == (x.numel() if fill else 0)


def test_a_mask_is_what_relus_backward_asks() -> None:
    x = torch.tensor([1.0, 0.0, math.nan, math.inf, -0.0, 1e-45])
    assert bitmap.unmask(bitmap.mask(x)).tolist() == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    ours = torch.ops.aten.threshold_backward(torch.ones(6), bitmap.unmask(bitmap.mask(x)), 0)
    assert torch.equal(ours, torch.ops.aten.threshold_backward(torch.ones(6), x, 0))


def test_costs_are_as_counted_by_hand() -> None:
    assert kernels.pack_cost(20, 7, 4) == Cost(0, 160, 3 + 28)
