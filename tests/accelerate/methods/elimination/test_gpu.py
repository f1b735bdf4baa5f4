"""Compiled kernels on the shapes they are for, in every precision, against float64; the search on the GPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.elimination import Eliminated, functional, reference, search
from lamina.accelerate.methods.elimination.config import By, Impl
from lamina.accelerate.methods.elimination.functional import Lookup, lookup
from lamina.accelerate.methods.elimination.network import fold
from lamina.accelerate.methods.elimination.tiles import candidates
from lamina.accelerate.methods.elimination.tuning import nearest_first
from lamina.build.models import create
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ...precisions import TYPES, cut

pytestmark = pytest.mark.gpu

MAPS = [(1, 4096, 9216), (16, 4096, 9216), (128, 4096, 9216), (129, 333, 77), (3, 1000, 4096)]  # rows, out, in
IMAGES = [  # batch, channels, outputs, size, kernel, padding, stride
    (16, 96, 256, 27, 5, 2, 1), (16, 256, 384, 13, 3, 1, 1), (3, 7, 33, 17, 3, 0, 2),
]  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def half(total: int, run: int = 1) -> Tensor:
    """Every other run of inputs, and one more so that the number is odd; a run of 0, the first."""
    if not run:
        return torch.arange(max(1, total // 2), device="cuda")
    places = torch.arange(total, device="cuda")
    kept = places[places // run % 2 == 0]
    return torch.cat([kept, places[-1:]]).unique() if run == 1 else kept


def hold(ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Tensor], precision: str) -> None:
    """To plain torch's accuracy; in TF32, which the library leaves for odd sizes, to that of cut operands."""
    exact = plain(*(one.double() for one in inputs))
    if precision == "tf32":
        x, w, bias = inputs
        expected = plain(cut(x).double(), cut(w).double(), bias.double()).float()
        assert_as_accurate(ours(*inputs), expected, exact, worst=1.5, mean=1.5)
    else:
        assert_as_accurate(ours(*inputs), plain(*inputs), exact, worst=3.0, mean=3.0)


@pytest.mark.parametrize(("run", "impl"), [(1, "kernel"), (8, "kernel"), (0, "kernel"), (1, "pack")])
@pytest.mark.parametrize("shape", MAPS, ids=str)
def test_linear_layers(
    precision: str, shape: tuple[int, int, int], run: int, impl: Impl, poisoned_empty: None
) -> None:  # fmt: skip
    rows, outputs, inputs = shape
    dtype, index = TYPES[precision], half(inputs, run)
    at = lookup(index, inputs)
    operands = [
        numbers(rows, inputs, dtype=dtype),
        (numbers(outputs, len(index), dtype=torch.float32) / len(index) ** 0.5).to(dtype),
        numbers(outputs, dtype=dtype),
    ]

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        # A single row is one of 16, as alone the library would multiply it without tensor cores.
        return reference.linear(x.expand(16, -1) if rows == 1 else x, w, b, index)[:rows]

    hold(partial(functional.linear, at=at, impl=impl), plain, operands, precision)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    ("by", "run", "impl"),
    [
        *(("channel", 1, "kernel"), ("channel", 8, "kernel"), ("channel", 0, "kernel")),
        *(("channel", 1, "pack"), ("channel", 0, "pack"), ("tap", 1, "kernel")),
    ],
)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_convolutions(
    precision: str, image: tuple[int, ...], by: By, run: int, impl: Impl, layout: torch.memory_format,
    poisoned_empty: None,
) -> None:  # fmt: skip
    batch, channels, outputs, size, taps, padding, stride = image
    dtype, kernel = TYPES[precision], (taps, taps)
    index = half(channels * (taps * taps if by == "tap" else 1), run)
    at = lookup(index, channels, taps * taps, by)
    shape = (outputs, len(index), *(kernel if by == "channel" else ()))
    scale = (len(index) * (taps * taps if by == "channel" else 1)) ** 0.5
    operands = [
        numbers(batch, channels, size, size, dtype=dtype).contiguous(memory_format=layout),
        (numbers(*shape, dtype=torch.float32) / scale).to(dtype),
        numbers(outputs, dtype=dtype),
    ]
    steps: dict[str, Any] = {"stride": (stride, stride), "padding": (padding, padding), "dilation": (1, 1)}

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.conv2d(x, reference.dense_weight(w, index, channels, kernel), b, **steps)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.conv2d(x, w, b, at, kernel=kernel, **steps, impl=impl)
        assert y.is_contiguous(memory_format=layout)
        return y

    hold(ours, plain, operands, precision)


def test_what_auto_is_on_a_gpu() -> None:
    single, grouped, first = (lookup(half(64, run), 64) for run in (1, 8, 0))
    taps = lookup(half(64 * 9), 64, 9, "tap")
    rows, image = torch.zeros(2, 64, device="cuda"), torch.zeros(2, 64, 5, 5, device="cuda")
    last = image.contiguous(memory_format=torch.channels_last)
    for x, at, window, expected in (
        (rows, single, 1, "pack"), (rows[:1], single, 1, "kernel"), (rows, first, 1, "slice"),
        (image, single, 9, "pack"), (image, grouped, 9, "pack"), (image, taps, 9, "kernel"),
        (last, single, 9, "pack"), (last, grouped, 9, "kernel"), (last, first, 9, "kernel"),
        (last, first, 36, "gather"), (last.double(), first, 9, "gather"),
    ):  # fmt: skip
        assert functional.chosen("auto", x, at, window) == expected, (x.shape, at.run, window)


@pytest.mark.parametrize("shape", [(128, 4096, 9216), (1, 1000, 4096)], ids=str)
def test_tiles_compute_the_same(shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    x, w, b = numbers(rows, inputs, dtype=torch.bfloat16), numbers(outputs, inputs // 2, dtype=torch.bfloat16), None
    at: Lookup = lookup(half(inputs, 8), inputs)
    expected = reference.linear(x.double(), w.double(), b, at.kept)
    with precision_mode("bf16", autotune=False):
        for tile in nearest_first(candidates(rows, outputs, inputs // 2, 2))[:8]:
            y = functional.linear(x, w, b, at, impl="kernel", tile=tile.pack())
            assert (y.double() - expected).norm() <= 5e-3 * expected.norm(), tile


def test_gradients_are_the_dense_layers() -> None:
    with precision_mode("fp32", autotune=False):
        for dense, shape in ((nn.Linear(64, 33), (17, 64)), (nn.Conv2d(16, 24, 3, 2, 1), (4, 16, 9, 9))):
            model, _ = convert(dense.cuda(), Eliminated(keep=0.5, impl="kernel"))
            layer: Any = model
            twin = layer.to_dense()
            x = torch.randn(shape, device="cuda")
            results = []
            for one in (layer, twin):
                leaf = x.clone().requires_grad_()
                y = one(leaf)
                upstream = torch.linspace(-1, 1, y.numel(), device="cuda").view(y.shape)
                dx, dw, db = torch.autograd.grad(y, [leaf, one.weight, one.bias], upstream)
                results.append((y, dx, dw[:, layer.index] if one is twin else dw, db))
            for mine, theirs in zip(*results, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_the_search_gives_the_same_on_both_devices() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(300, 64) + torch.randn(20, 64).repeat(15, 1)
    for options in ({"keep": 0.5}, {"alpha": 0.4}):
        ours, theirs = (search.select(v, **options)[0].tolist() for v in (vectors.cuda(), vectors))  # type: ignore[arg-type]
        assert ours == theirs


def test_thousands_of_vectors_are_searched() -> None:
    kept, found = search.select(torch.randn(9216, 4096, device="cuda"), keep=0.5, align=64)
    assert len(kept) == 4608 and found.representatives <= 4608 and kept.unique().numel() == 4608


def test_alexnet_computes_the_same_folded() -> None:
    torch.manual_seed(0)
    with precision_mode("fp32", autotune=False):
        model = create("alexnet", None).cuda().eval()
        model, record = convert(model, Eliminated(keep=0.5, align=8))
        x = torch.randn(4, 3, 224, 224, device="cuda")
        with torch.no_grad():
            expected = model(x)
            folded, changed = fold(model)
            y = folded(x)
        assert len(record.replaced) == 8 and len(changed) >= 5
        assert (y - expected).norm() <= 1e-4 * expected.norm()


def test_layers_are_compiled_and_captured() -> None:
    model, _ = convert(nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(392, 16)).cuda(), Eliminated(keep=0.5))
    x = torch.randn(2, 8, 9, 9, device="cuda")
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graph.replay()
    torch.testing.assert_close(y, expected)
