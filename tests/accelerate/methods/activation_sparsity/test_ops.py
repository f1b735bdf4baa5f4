"""Conversion and products by the kernels, against plain PyTorch, on tiny and hostile maps."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import ops, reference
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.methods.activation_sparsity.im2col import matrix_as_map
from lamina.accelerate.methods.activation_sparsity.row_union import ops as row_union_ops
from lamina.accelerate.methods.activation_sparsity.tiles import Tile
from lamina.errors import UsageError

pytestmark = [pytest.mark.usefixtures("where_kernels_run", "poisoned_empty")]

SMALL = Tile(16, 8, 16)
WINDOWS = [  # image, outputs, window, type, layout
    ((2, 3, 4, 3), 7, Conv2dGeometry(2, 1, 2, 1, 1, 0), torch.bfloat16, "channels last"),
    ((1, 5, 3, 4), 3, Conv2dGeometry(2, 2, 1, 1, 0, 1, 1, 2), torch.float32, "strided"),
    ((3, 6, 2, 3), 17, Conv2dGeometry(), torch.float16, "contiguous"),
]
CASES = pytest.mark.parametrize(("image", "outputs", "window", "dtype", "layout"), WINDOWS)


def sparse_map(*shape: int, dtype: torch.dtype = torch.float32, zeros: float = 0.6) -> Tensor:
    return torch.where(torch.rand(shape) < zeros, 0.0, torch.randn(shape)).to(dtype)


def laid(x: Tensor, layout: str) -> Tensor:
    """The same map in other strides."""
    if layout == "strided":
        return torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0]
    if layout == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    return x.mT.contiguous().mT if layout == "transposed" else x


def same(ours: EllpackDib, theirs: EllpackDib) -> bool:
    """Whether counts, scales and all words that count are equal."""
    slots = torch.arange(max(ours.capacity, theirs.capacity))[None, :, None] < theirs.counts[:, None]
    words = [F.pad(one.words, (0, 0, 0, len(slots[0]) - one.capacity))[slots] for one in (ours, theirs)]
    parts = (words, (ours.counts, theirs.counts), (ours.scales, theirs.scales))
    return ours.shape == theirs.shape and all(torch.equal(*part) for part in parts)


@pytest.mark.parametrize(
    ("shape", "panel", "dtype", "layout"),
    [
        ((9, 7), 100, torch.float32, "transposed"),
        ((9, 7), 4, torch.bfloat16, "strided"),
        ((33, 11), 20, torch.float16, "contiguous"),
        ((1, 1), 1, torch.float32, "contiguous"),
    ],
)
def test_a_matrix_is_converted_word_for_word(
    shape: tuple[int, int], panel: int, dtype: torch.dtype, layout: str
) -> None:
    dense = sparse_map(*shape, dtype=dtype)
    x = matrix_as_map(laid(dense, layout))
    ours = ellpack_ops.to_ellpack(x, panel=panel, tile=SMALL)
    assert same(ours, reference.from_dense(dense, panel=panel, scales=ours.scales))
    assert torch.equal(ours.scales, reference.fit_scales(dense).expand_as(ours.scales))
    assert torch.equal(ellpack_ops.count_nonzeros(x, panel=panel), ours.counts)


@CASES
def test_a_map_is_converted_as_its_windows(
    image: tuple[int, ...], outputs: int, window: Conv2dGeometry, dtype: torch.dtype, layout: str
) -> None:
    x = sparse_map(*image, dtype=dtype)
    ours = ellpack_ops.to_ellpack(laid(x, layout), window=window, panel=8)
    columns = reference.im2col(x.float(), window).to(dtype)
    assert same(ours, reference.from_dense(columns, panel=8, scales=ours.scales))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_hostile_numbers_keep_their_places() -> None:
    dense = torch.tensor([[math.nan, 0.0, 1e30, -0.0], [math.inf, 0.0, 1e-30, 65504.0], [-math.inf, 0.0, -1.0, 1e5]])
    ours = ellpack_ops.to_ellpack(matrix_as_map(dense))
    theirs = reference.from_dense(dense)
    assert torch.equal(ours.counts, theirs.counts) and ours.counts.tolist() == [[3, 0, 3, 2]]
    torch.testing.assert_close(reference.to_dense(ours), reference.to_dense(theirs), rtol=0, atol=0, equal_nan=True)
    given = ellpack_ops.to_ellpack(matrix_as_map(dense), torch.ones(1))
    expected = dense.half().float()
    torch.testing.assert_close(reference.to_dense(given), expected, rtol=0, atol=0, equal_nan=True)
    report = reference.rounding(dense, given)
    assert (report.overflowed, report.flushed) == (2, 1)


@pytest.mark.parametrize("largest", [0.0, 1e-42, 1e-38, 0.7, 1.0, 65504.0, 3.4e38, math.inf, math.nan])
def test_scales_are_the_references(largest: float) -> None:
    dense = torch.tensor([[largest, 0.25 * largest], [0.0, 0.0]])
    assert torch.equal(ellpack_ops.scales_of(matrix_as_map(dense)), reference.fit_scales(dense))


def test_a_full_column_is_not_overrun_and_makes_its_product_nan() -> None:
    dense = torch.zeros(6, 3)
    dense[:, 1] = 1.0
    dense[2, 2] = 2.0
    sparse = ellpack_ops.to_ellpack(matrix_as_map(dense), capacity=3)
    assert sparse.counts.tolist() == [[0, 6, 1]]
    with pytest.raises(UsageError, match="at most 3 non-zeros"):
        sparse.check()
    y = ellpack_ops.nonzero_product(torch.ones(6, 4), None, sparse, torch.empty(1, 4, 1, 3), (1, 3))
    assert y[0, :, 0].isnan().any(0).tolist() == [False, True, False]
    assert y[0, 0, 0, 2] == 2.0


def dense_conv(x: Tensor, weight: Tensor, bias: Tensor | None, window: Conv2dGeometry) -> Tensor:
    _, _, sh, sw, ph, pw, dh, dw = window.pack()
    return F.conv2d(x.double(), weight.double(), None if bias is None else bias.double(), (sh, sw), (ph, pw), (dh, dw))


@pytest.mark.parametrize("impl", ["nonzero", "row_union", "row_union_fp16"])
@CASES
def test_convolutions(
    image: tuple[int, ...], outputs: int, window: Conv2dGeometry, dtype: torch.dtype, layout: str, impl: str
) -> None:
    # Activations that float16 holds exactly, so that both kernels see the same numbers.
    x = sparse_map(*image).half().to(dtype)
    weight, bias = torch.randn(outputs, image[1], *window.pack()[:2]).to(dtype), torch.randn(outputs).to(dtype)
    y = ops.product(ops.transposed_weight(weight), bias, laid(x, layout), window, impl)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last if layout == "channels last" else torch.contiguous_format)
    expected = dense_conv(x, weight, bias, window)
    torch.testing.assert_close(y.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("stored", ["bf16", "fp16"])
def test_weights_of_16_bits(stored: str) -> None:
    x, weight = sparse_map(1, 5, 2, 4).half().float(), torch.randn(6, 5, 1, 2)
    rounded = weight.to(ops.WEIGHT_DTYPES[stored]).double()
    y = ops.product(ops.transposed_weight(weight), None, x, Conv2dGeometry(1, 2), "nonzero", stored)
    torch.testing.assert_close(y.double(), dense_conv(x, rounded, None, Conv2dGeometry(1, 2)), rtol=1e-5, atol=1e-5)


def test_panels_and_padded_tails() -> None:
    a, b = torch.randn(19, 37), sparse_map(37, 11, zeros=0.8).half().float()
    y = torch.empty(1, 19, 1, 11)
    sparse = ellpack_ops.to_ellpack(matrix_as_map(b), panel=20)
    ellpack_ops.nonzero_product(a.mT, None, sparse, y, (1, 11), tile=Tile(16, 8, 2))
    torch.testing.assert_close(y[0, :, 0].double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    row_union_ops.row_union_product(a.mT, None, matrix_as_map(b), y.fill_(math.nan), tile=Tile(16, 16, 16))
    torch.testing.assert_close(y[0, :, 0].double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [4, 16])
@CASES
def test_united_rows_are_the_references(
    image: tuple[int, ...], outputs: int, window: Conv2dGeometry, dtype: torch.dtype, layout: str, width: int
) -> None:
    x = sparse_map(*image, zeros=0.9)
    expected = reference.row_union_rows(reference.im2col(x, window), width)
    lists, lengths, _ = row_union_ops.row_union(laid(x, layout), window, width)
    assert lengths.tolist() == expected.sum(1).tolist()
    for tile, rows in enumerate(expected):
        assert lists[tile, : lengths[tile]].tolist() == rows.nonzero().flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_gradients(dtype: torch.dtype) -> None:
    at, b, dc = torch.randn(20, 18).to(dtype), sparse_map(20, 23, dtype=dtype, zeros=0.9), torch.randn(18, 23).to(dtype)
    b[3:9, :16] = 0
    expected = torch.where(b != 0, at.double() @ dc.double(), 0.0)
    db = row_union_ops.masked_product(at, laid(b, "strided"), dc.mT.contiguous().mT, Tile(16, 16, 16))
    torch.testing.assert_close(db.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=2e-5)


@pytest.mark.parametrize("impl", ["nonzero", "row_union"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_matrices_of_nothing(shape: tuple[int, int, int], impl: str) -> None:
    columns, inputs, rows = shape
    a, b = torch.randn(rows, inputs), torch.randn(inputs, columns)
    assert torch.equal(ops.matmul(a, b, impl, "same", True), a @ b)
    assert row_union_ops.masked_product(a.mT, b, torch.randn(rows, columns)).shape == b.shape


@pytest.mark.parametrize("impl", ["nonzero", "row_union"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=str)
def test_nothing_comes_of_nothing(shape: tuple[int, int, int], impl: str) -> None:
    rows, inputs, outputs = shape
    bias = torch.randn(outputs)
    y = ops.product(torch.randn(inputs, outputs), bias, torch.randn(rows, inputs, 1, 1), Conv2dGeometry(), impl)
    assert torch.equal(y[..., 0, 0], bias.expand(rows, outputs))


@pytest.mark.parametrize("impl", ["nonzero", "row_union"])
@pytest.mark.parametrize("fill", [0.0, 1.5])
def test_all_zero_and_all_dense(fill: float, impl: str) -> None:
    x, weight = torch.full((1, 3, 3, 2), fill), torch.randn(5, 3, 2, 2)
    y = ops.product(ops.transposed_weight(weight), None, x, Conv2dGeometry(2, 2, 1, 1, 1, 1), impl)
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=1), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("impl", ["nonzero", "row_union", "row_union_fp16"])
def test_nan_and_infinity_reach_the_result(impl: str) -> None:
    x, weight = torch.zeros(1, 2, 1, 4), torch.ones(3, 2, 1, 1)
    x[0, 0, 0, 1], x[0, 1, 0, 3] = math.nan, math.inf
    y = ops.product(ops.transposed_weight(weight), None, x, Conv2dGeometry(), impl)
    torch.testing.assert_close(y, F.conv2d(x, weight), equal_nan=True)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("images", [1, 2])  # lists of tiles, and of images
def test_infinities_meet_low_halves_of_any_sign(images: int) -> None:
    x = torch.where(torch.rand(images, 3, 6, 7) < 0.8, 0.0, torch.randn(images, 3, 6, 7))
    weight = torch.randn(8, 3, 1, 1)
    x[:, :, 2, 2] = 1.0  # so that nothing is left out
    x[0, 0, 0, 1], x[-1, 1, 5, 3], x[-1, 2, 4, 4] = math.inf, -math.inf, math.nan
    weight[3, 2], weight[4, 0] = math.inf, -math.inf
    y = ops.product(ops.weight_rows(weight, "row_union", "same"), None, x, Conv2dGeometry(), "row_union")
    torch.testing.assert_close(y, F.conv2d(x, weight), equal_nan=True, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e30, 3e37])
@pytest.mark.parametrize("images", [1, 2])
def test_numbers_of_any_size(images: int, scale: float) -> None:
    x, weight = sparse_map(images, 4, 6, 6).clamp(-4, 4), torch.randn(5, 4, 1, 1)
    for one, other in ((x * scale, weight / 64), (x, weight * (scale / 64))):
        y = ops.product(ops.weight_rows(other, "row_union", "same"), None, one, Conv2dGeometry(), "row_union")
        exact = F.conv2d(one.double(), other.double())
        torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=max(1e-6 * exact.abs().max().item(), 1e-44))


def test_weights_with_gaps_are_read_where_they_are() -> None:
    b, a = sparse_map(6, 9), torch.randn(12, 12)
    large, sliced = a.clone(), a[::2, ::2]
    large[1::2] = 1e30
    for one in (sliced, large[::2, ::2], torch.randn(1, 1).expand(6, 6)):
        torch.testing.assert_close(ops.matmul(one, b, "row_union", "same", False), one @ b, rtol=1e-5, atol=1e-5)


def gradients(function: Any, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    leaves = [one.detach().clone().requires_grad_() for one in (x, weight, bias)]
    y = function(*leaves)
    upstream = torch.where(torch.arange(y.numel()) % 3 == 0, torch.linspace(-2, 2, y.numel()), 0.0).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream.half().to(y.dtype))]


@pytest.mark.parametrize("data", ["dense", "nonzero", "row_union"])
@pytest.mark.parametrize("window", [Conv2dGeometry(1, 2, 1, 1, 1, 0, 1, 2), Conv2dGeometry(2, 1, 1, 1, 0, 1)])
def test_gradients_of_convolutions(window: Conv2dGeometry, data: str) -> None:
    x, weight = sparse_map(1, 4, 3, 4).half().float(), torch.randn(3, 4, *window.pack()[:2])
    bias, steps = torch.randn(3), window.pack()
    ours = gradients(lambda x, w, b: ops.conv(x, w, b, steps, "dense", data, "same"), x, weight, bias)
    theirs = gradients(lambda x, w, b: dense_conv(x, w, b, window), x, weight, bias)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("data", "weights"), [("dense", "nonzero"), ("nonzero", "row_union"), ("row_union", "dense")])
def test_gradients_of_linear_maps(data: str, weights: str) -> None:
    x, weight, bias = sparse_map(5, 9).half().float(), torch.randn(6, 9), torch.randn(6)
    ours = gradients(lambda x, w, b: ops.linear(x, w, b, "row_union", data, weights, "same"), x, weight, bias)
    theirs = gradients(lambda x, w, b: F.linear(x.double(), w.double(), b.double()), x, weight, bias)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("panel", "capacity"), [(100, 9), (4, 4), (4, 0)])
def test_a_map_comes_back(panel: int, capacity: int) -> None:
    x = sparse_map(2, 9, 3, 2).half().float()
    for layout in ("contiguous", "channels last"):
        sparse = ellpack_ops.to_ellpack(laid(x, layout), panel=panel, capacity=capacity)
        y = ellpack_ops.from_ellpack(sparse, torch.zeros_like(laid(x, layout)))
        if capacity:
            assert torch.equal(y, x)
        else:
            assert y[:, ::4].isnan().flatten(2).any(1).equal((sparse.counts > 0).any(0).view(2, 6))
