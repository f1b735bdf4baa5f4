"""The CUDA sources, run as C++ on the CPU with blocks of one small warp, against plain PyTorch."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests import compiling
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.common.tiling import SHARED_MEMORY
from lamina.accelerate.methods.activation_sparsity import functional, ops, reference
from lamina.accelerate.methods.activation_sparsity.ellpack import cuda
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.methods.activation_sparsity.ellpack.cuda import ConvertTile, ProductTile
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.methods.activation_sparsity.im2col import matrix_as_map
from lamina.accelerate.runtime import triton_ops as launching
from lamina.testing.cuda_on_cpu import KernelOnCpu

CONVERT_TILE, PRODUCT_TILE = cuda.convert_tile, cuda.product_tile
SMALL = ProductTile(1, 4, 8, 2, 8, warp=4)
TYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, poisoned_empty: None) -> Iterator[None]:
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(launching, "INTERPRETED", True)
    monkeypatch.setattr(cuda, "convert_tile", lambda rows: ConvertTile(8, 2, 8))
    monkeypatch.setattr(cuda, "product_tile", lambda outputs, columns, itemsize: SMALL)
    monkeypatch.setattr(cuda, "amax", partial(cuda.amax, threads=8))
    with torch.device("cpu"):  # where another device is the default one, too
        yield


def sparse_map(*shape: int, dtype: torch.dtype = torch.float32, zeros: float = 0.6) -> Tensor:
    return torch.where(torch.rand(shape) < zeros, 0.0, torch.randn(shape)).half().to(dtype)


def same(ours: EllpackDib, dense: Tensor) -> None:
    theirs = reference.from_dense(dense, panel=ours.panel, scales=ours.scales)
    slots = torch.arange(theirs.capacity)[None, :, None] < theirs.counts[:, None]
    assert torch.equal(ours.counts, theirs.counts)
    assert torch.equal(ours.words[:, : theirs.capacity][slots], theirs.words[slots])


@compiling.needs_nvrtc
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sources_compile_for_a_hopper_gpu(
    dtype: torch.dtype, own_binaries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("kernel_class", compiling.ForHopper), ("convert_tile", CONVERT_TILE), ("product_tile", PRODUCT_TILE)
    ):  # fmt: skip
        monkeypatch.setattr(cuda, name, value)
    for layout in LAYOUTS:
        for window in (Conv2dGeometry(3, 3, 1, 1, 1, 1), Conv2dGeometry()):
            x = sparse_map(2, 64, 6, 8, dtype=dtype).contiguous(memory_format=layout)
            weight = torch.randn(128, 64, *window.pack()[:2]).to(dtype)
            ops.product(ops.transposed_weight(weight), None, x, window, "nonzero")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_map_is_converted_word_for_word(dtype: torch.dtype, channels: int, layout: torch.memory_format) -> None:
    x = sparse_map(2, channels, 5, 7, dtype=dtype).contiguous(memory_format=layout)
    dense = reference.im2col(x, Conv2dGeometry())
    for panel in (100, 8):
        ours = ellpack_ops.to_ellpack(x, panel=panel)
        same(ours, dense)
        assert torch.equal(ours.scales, reference.fit_scales(dense).expand_as(ours.scales))
        assert torch.equal(ellpack_ops.count_nonzeros(x, panel=panel), ours.counts)


@pytest.mark.parametrize("outlier", [1.0, 3e4, math.inf])
def test_a_guessed_scale_is_put_right(outlier: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "L2_BYTES", 0)
    x = sparse_map(2, 21, 5, 7)
    x[1, 20, 4, 5] = outlier
    ours, dense = ellpack_ops.to_ellpack(x, panel=8), reference.im2col(x, Conv2dGeometry())
    same(ours, dense)
    assert torch.equal(ours.scales, reference.fit_scales(dense).expand_as(ours.scales))


def test_matrices_scales_that_are_given_and_columns_that_do_not_fit() -> None:
    dense = sparse_map(19, 11)
    dense[3, 2], dense[4, 2], dense[5, 2], dense[6, 3] = math.nan, math.inf, -0.0, 3e38
    for matrix in (dense, dense.mT.contiguous().mT):
        same(functional.compress(matrix, scales=torch.tensor([2.0])), dense)
        short = functional.compress(matrix, capacity=2)
        assert torch.equal(short.counts, (dense != 0).sum(0, dtype=torch.int32)[None])
    assert ellpack_ops.count_nonzeros(matrix_as_map(torch.zeros(3, 0))).shape == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "window", [Conv2dGeometry(3, 2, 1, 1, 1, 0), Conv2dGeometry(2, 2, 2, 1, 0, 1, 1, 2), Conv2dGeometry()], ids=str
)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products(dtype: torch.dtype, window: Conv2dGeometry, layout: torch.memory_format) -> None:
    x = sparse_map(2, 21, 5, 7, dtype=dtype).contiguous(memory_format=layout)
    weight, bias = torch.randn(37, 21, *window.pack()[:2]).to(dtype), torch.randn(37).to(dtype)
    y = ops.product(ops.transposed_weight(weight), bias, x, window, "nonzero")
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    exact = F.conv2d(x.double(), weight.double(), bias.double(), (sh, sw), (ph, pw), (dh, dw))
    assert y.dtype == dtype and y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products_are_written_four_at_a_time_where_pixels_allow(dtype: torch.dtype) -> None:
    x, weight = sparse_map(3, 5, 4, 6, dtype=dtype), torch.randn(18, 5, 3, 3).to(dtype)
    x[1] = 0.0  # columns of nothing, whose warps have nothing to wait for
    y = ops.product(ops.transposed_weight(weight), None, x, Conv2dGeometry(3, 3, 1, 1, 1, 1), "nonzero")
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("columns", [1, 12, 18])
def test_matrices_with_few_and_many_slots_and_weights_of_16_bits(columns: int) -> None:
    a, b = torch.randn(33, 20).half().float(), sparse_map(20, columns)
    b[:8, 0], b[8:, -1] = 1.0, 0.0  # more slots than are unpacked at a time, and a panel of none
    for stored in ("same", "fp16"):
        c = functional.matmul(a, b, weights=stored)  # type: ignore[arg-type]
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [ProductTile(1, 8, 8, 2, 8, warp=8), ProductTile(1, 16, 16, 4, 16, warp=16)], ids=str)
@pytest.mark.parametrize("stored", ["same", "fp16", "bf16"])
def test_columns_side_by_side(stored: Any, block: ProductTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "product_tile", lambda outputs, columns, itemsize: block)
    a, b = torch.randn(45, 20).bfloat16().float(), sparse_map(20, 36)
    b[:, 3], b[:, 30] = 0.0, 1.0
    c = functional.matmul(a, b, weights=stored)
    exact = a.to(ops.WEIGHT_DTYPES.get(stored, a.dtype)).double() @ b.double()
    torch.testing.assert_close(c.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_is_not_finite_stays_where_it_is_and_panels_have_scales(dtype: torch.dtype) -> None:
    a, b = torch.randn(20, 33).to(dtype), sparse_map(20, 18)
    a[2, 3], a[5, 30], a[7, 7], b[9, 4], b[10, 5] = math.inf, math.nan, -math.inf, math.inf, math.nan
    y = torch.empty(1, 33, 1, 18)
    scales = torch.tensor([1.0, 4.0, 2.0])
    ellpack_ops.nonzero_product(a, None, ellpack_ops.to_ellpack(matrix_as_map(b), scales, panel=8), y, (1, 18))
    exact = torch.where(b[:, None] != 0, a.double()[:, :, None] * b.double()[:, None], 0.0).sum(0)
    torch.testing.assert_close(y[0, :, 0].double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert y.isfinite().any() and not y.isfinite().all()


def test_a_full_column_makes_its_product_nan() -> None:
    dense = torch.zeros(6, 3)
    dense[:, 1], dense[2, 2] = 1.0, 2.0
    y = torch.empty(1, 4, 1, 3)
    ellpack_ops.nonzero_product(
        torch.ones(6, 4), None, ellpack_ops.to_ellpack(matrix_as_map(dense), capacity=3), y, (1, 3)
    )
    assert y[0, :, 0].isnan().any(0).tolist() == [False, True, False]
    assert y[0, 0, 0, 2] == 2.0


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("outputs", [1, 64, 512, 5000])
def test_blocks_fit_a_multiprocessor(outputs: int, itemsize: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for columns in (1, 12544, 10**7):
        block = cuda.product_tile(outputs, columns, itemsize)
        assert block.shared(block.panel, itemsize) <= SHARED_MEMORY
        assert block.warps * block.warp <= 1024
    # 132 blocks, as many as there are multiprocessors.
    block = cuda.product_tile(512, 12544, itemsize)
    assert -(-12544 // block.columns) * -(-512 // block.outputs) == 132
