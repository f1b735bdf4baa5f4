"""Compiled kernels on the shapes they are for, in every precision, against float64; saved activations on the GPU."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import Sparse, functional, reference
from lamina.accelerate.methods.activation_sparsity.cost import Calibration, PhaseImpls
from lamina.accelerate.methods.activation_sparsity.ellpack import ops as ellpack_ops
from lamina.accelerate.methods.activation_sparsity.ellpack.format import EllpackDib
from lamina.accelerate.methods.activation_sparsity.im2col import matrix_as_map
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d
from lamina.accelerate.methods.activation_sparsity.row_union import ops as row_union_ops
from lamina.accelerate.training.compressed_activations import bitmap, compressed_activations, convolution, pooling
from lamina.accelerate.training.compressed_activations import ops as saved_ops
from lamina.accelerate.training.compressed_activations.window import pooling_of
from lamina.build.models import create
from lamina.errors import LaminaError
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ...precisions import TYPES, cut
from ...waiting import no_waiting

pytestmark = pytest.mark.gpu

PRODUCTS = [(512, 2304, 12544), (64, 27, 4097), (33, 4100, 130), (1000, 77, 1), (1, 1, 1)]  # M, K, N
IMAGES = [  # batch, channels, outputs, size, kernel, stride, padding, dilation
    (8, 256, 512, 28, 3, 1, 1, 1), (16, 96, 256, 27, 5, 1, 2, 1), (3, 7, 33, 17, 3, 2, 0, 1), (2, 5, 9, 11, 2, 1, 1, 2),
]  # fmt: skip
KERNELS = ("nonzero", "row_union", "row_union_fp16")


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def sparse(*shape: int, dtype: torch.dtype = torch.float32, zeros: float = 0.8) -> Tensor:
    """Independent zeros, a channel of them and one that has none, in numbers that float16 holds."""
    x = torch.where(torch.rand(shape, device="cuda") < zeros, 0.0, numbers(*shape)).half()
    x[(slice(None),) * (len(shape) // 4) + (0,)] = 1.0
    if shape[len(shape) // 4] > 2:
        x[(slice(None),) * (len(shape) // 4) + (1,)] = 0.0
    return x.to(dtype)


def hold(ours: Tensor, plain: Callable[..., Tensor], operands: list[Tensor], precision: str, what: str = "") -> None:
    """In TF32 plain torch may compute in float32 where it pleases, so the bound is what cut operands give exactly."""
    exact = plain(*(one.double() for one in operands))
    if precision == "tf32":
        theirs = plain(*(cut(one).double() for one in operands)).float()
        assert_as_accurate(ours, theirs, exact, what=what or "result")
        return
    # Non-zeros are summed one after the other.
    factor = 4.0 if precision == "fp32" else 3.0
    assert_as_accurate(ours, plain(*operands), exact, worst=factor, mean=factor, what=what or "result")


@pytest.mark.parametrize("impl", KERNELS)
@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_products(precision: str, shape: tuple[int, int, int], impl: Any, poisoned_empty: None) -> None:
    outputs, rows, columns = shape
    dtype = TYPES[precision]
    a, b = (numbers(outputs, rows) / rows**0.5).to(dtype), sparse(rows, columns, dtype=dtype)
    for operand in (b, b.mT.contiguous().mT):
        hold(functional.matmul(a, operand, impl=impl), torch.matmul, [a, operand], precision)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("impl", KERNELS)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_convolutions(
    precision: str, image: tuple[int, ...], impl: Any, layout: torch.memory_format, poisoned_empty: None
) -> None:
    batch, channels, outputs, size, kernel, stride, padding, dilation = image
    dtype, steps = TYPES[precision], ((stride, stride), (padding, padding), (dilation, dilation))
    x = sparse(batch, channels, size, size, dtype=dtype).contiguous(memory_format=layout)
    w = (numbers(outputs, channels, kernel, kernel) / (channels * kernel**2) ** 0.5).to(dtype)
    b = numbers(outputs, dtype=dtype)
    y = functional.conv2d(x, w, b, *steps, impls=PhaseImpls(impl))
    assert y.is_contiguous(memory_format=layout)
    hold(y, lambda *operands: F.conv2d(*operands, *steps), [x, w, b], precision)


@pytest.mark.parametrize("impl", KERNELS)
def test_gradients(precision: str, impl: Any, poisoned_empty: None) -> None:
    dtype = TYPES[precision]
    x, w = sparse(4, 64, 14, 14, dtype=dtype), (numbers(96, 64, 3, 3) / 24).to(dtype)
    # In numbers that no precision cuts: what is cut is the operands of `hold`.
    sent = cut(sparse(4, 96, 14, 14, zeros=0.9)).to(dtype)

    def gradients(plan: PhaseImpls, *operands: Tensor) -> tuple[Tensor, ...]:
        leaves = [one.detach().requires_grad_() for one in operands]
        y = functional.conv2d(*leaves, None, (1, 1), (1, 1), impls=plan)
        return torch.autograd.grad(y, leaves, sent.to(y))

    ours = gradients(PhaseImpls(impl, impl), x, w)
    hold(ours[0], lambda *two: gradients(PhaseImpls(), *two)[0], [x, w], precision, "dx")
    # The weight's gradient is the library's.
    theirs, exact = (gradients(PhaseImpls(), *two)[1] for two in ((x, w), (x.double(), w.double())))
    assert_as_accurate(ours[1], theirs, exact, what="dw")


def test_gradients_of_what_a_relu_gave(precision: str, poisoned_empty: None) -> None:
    dtype = TYPES[precision]
    at, b, dc = numbers(513, 96, dtype=dtype), sparse(513, 1030, dtype=dtype), numbers(96, 1030, dtype=dtype)
    hold(row_union_ops.masked_product(at, b, dc), lambda p, q: torch.where(b != 0, p @ q, 0.0), [at, dc], precision)


def same(ours: EllpackDib, theirs: EllpackDib) -> bool:
    slots = torch.arange(theirs.capacity, device="cuda")[None, :, None] < theirs.counts[:, None]
    words = [one.words[:, : theirs.capacity][slots] for one in (ours, theirs)]
    return all(torch.equal(*part) for part in (words, (ours.counts, theirs.counts), (ours.scales, theirs.scales)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zeros", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("shape", [(2304, 12544), (70_001, 65), (1, 4097), (257, 1)], ids=str)
def test_conversion_word_for_word(
    shape: tuple[int, int], zeros: float, dtype: torch.dtype, poisoned_empty: None
) -> None:
    x = torch.where(torch.rand(shape, device="cuda") < zeros, 0.0, numbers(*shape)).to(dtype)
    x[-1, 0] = -0.0
    ours = functional.compress(x, capacity="measure")
    assert same(ours, reference.from_dense(x, scales=ours.scales))
    image = matrix_as_map(x)
    assert torch.equal(
        ellpack_ops.from_ellpack(ours, torch.zeros_like(image)), matrix_as_map(reference.to_dense(ours, dtype))
    )


def test_the_windows_of_a_map_are_converted() -> None:
    x, window = sparse(4, 64, 28, 28), Conv2dGeometry(3, 3, 1, 1, 1, 1)
    ours = functional.compress(x, window, capacity="measure")
    assert same(ours, reference.from_dense(reference.im2col(x, window), scales=ours.scales))


@pytest.mark.parametrize("impl", KERNELS)
def test_hostile_numbers(impl: Any) -> None:
    b = sparse(300, 200)
    b[3, 5], b[7, 6], b[:, 9] = torch.nan, torch.inf, 0.0
    c = functional.matmul(torch.ones(40, 300, device="cuda"), b, impl=impl)
    assert c[:, 5].isnan().all() and c[:, 6].isinf().all() and (c[:, 9] == 0).all()
    assert c[:, 10:].isfinite().all()
    large = torch.full((64, 64), 3e38, device="cuda")
    torch.testing.assert_close(
        functional.matmul(torch.eye(64, device="cuda"), large, impl=impl), large, rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("impl", KERNELS)
def test_nothing_waits_for_the_device_and_graphs_replay(impl: Any) -> None:
    layer = SparseAdaptiveConv2d(64, 96, 3, padding=1, impl=impl, device="cuda")
    x, other = sparse(4, 64, 14, 14), sparse(4, 64, 14, 14, zeros=0.3)
    expected = layer(other)
    layer(x)
    torch.cuda.synchronize()
    with no_waiting():
        layer(x).sum().backward()
    held, graph = x.clone(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(held)
    held.copy_(other)
    graph.replay()
    assert torch.equal(y, expected), "the format is made anew, and results are the same each time"


def test_compiled_layers_compute_the_same() -> None:
    model, _ = convert(
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(392, 16)), Sparse("row_union")
    )
    model, x = model.cuda(), numbers(2, 8, 9, 9)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))


def test_layers_that_chose_dense_are_bitwise_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    torch.manual_seed(0)
    dense = create("alexnet", 10).cuda().eval()
    ours, record = convert(copy.deepcopy(dense), Sparse())
    assert len(record.replaced) == 8
    never = Calibration(dense=1e9, nonzero=1, union=1, bandwidth=1e6, launch_us=1)
    for layer in ours.modules():
        if hasattr(layer, "calibration"):
            layer.calibration = never
    x = numbers(4, 3, 224, 224)
    with precision_mode("fp32", autotune=False):
        results = [(m(x), *torch.autograd.grad(m(x).square().sum(), list(m.parameters()))) for m in (ours, dense)]
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 4095, 4097, 3_000_001])
def test_bitmaps(dtype: torch.dtype, size: int, poisoned_empty: None) -> None:
    x = numbers(size, dtype=dtype).relu()
    x[0] = torch.nan
    ours, theirs = saved_ops.pack(x), bitmap.pack(x)
    assert torch.equal(ours.bits, theirs.bits) and ours.values.numel() == theirs.values.numel()
    assert torch.equal(bitmap.stored(saved_ops.unpack(ours)), bitmap.stored(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_relu_with_bits(dtype: torch.dtype, poisoned_empty: None) -> None:
    x, gradient = numbers(3_000_001, dtype=dtype), numbers(3_000_001, dtype=dtype)
    x[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0])
    y = torch.empty_like(x)
    bits = saved_ops.relu(x, y)
    torch.testing.assert_close(y, x.relu(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(bits, bitmap.mask(x.relu())) and torch.equal(saved_ops.relu(x, x), bits)
    expected = torch.ops.aten.threshold_backward(gradient, y, 0)
    assert torch.equal(saved_ops.masked(gradient, bits), expected)


def test_passes_of_a_graph_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Conv2d(32, 64, 3), nn.ReLU(True), nn.Conv2d(64, 8, 3)
    ).cuda()
    static, saved = numbers(16, 3, 64, 64), compressed_activations("bitmap")

    def step() -> list[Tensor]:
        with saved:
            loss = model(static).square().sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    with precision_mode("fp32", autotune=False), torch.backends.cudnn.flags(deterministic=True):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            captured = step()
        for _ in range(3):
            static.copy_(numbers(16, 3, 64, 64))
            graph.replay()
            torch.cuda.synchronize()
            saved.check()
            for ours, theirs in zip(captured, step(), strict=True):
                assert torch.equal(ours, theirs)
        with torch.no_grad():
            model[3].bias.add_(100)
        graph.replay()
        torch.cuda.synchronize()
        assert captured[4].isnan().any()
        with pytest.raises(LaminaError, match="has capacity for"):
            saved.check()


# The library pools channels-last maps in an order that is not the same each time.
@pytest.mark.parametrize(
    ("name", "layout"),
    [("alexnet", torch.contiguous_format), ("vgg11_cifar", torch.contiguous_format)]
    + [("resnet18_cifar", layout) for layout in (torch.contiguous_format, torch.channels_last)],
    ids=str,
)
def test_saved_activations_give_the_same_gradients(
    precision: str, name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(convolution, "MIN_SPLIT_BYTES", 1)
    torch.manual_seed(0)
    model = create(name, 10).to("cuda", TYPES[precision], memory_format=layout)
    size = 224 if name == "alexnet" else 32
    x = numbers(8, 3, size, size, dtype=TYPES[precision]).contiguous(memory_format=layout)
    state, results = copy.deepcopy(model.state_dict()), []
    for context in (compressed_activations("bitmap"), torch.enable_grad()):
        model.load_state_dict(state)
        torch.manual_seed(1)
        with context:
            loss = model(x).float().square().sum()
        results.append(torch.autograd.grad(loss, list(model.parameters())))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("how", [(2, 2, 0), (3, 2, 1), (3, 1, 0)], ids=str)
def test_max_pooling_is_that_of_torch(precision: str, how: tuple[int, int, int]) -> None:
    # Zeros are equal, and windows overlap.
    x = numbers(5, 67, 57, 63, dtype=TYPES[precision]).relu()
    x[0, 0, 5, 5] = torch.nan
    asked, windows = pooling_of(x, *how), [(one, one) for one in how]
    assert asked is not None
    theirs, indices = torch.ops.aten.max_pool2d_with_indices(x, *windows)
    y, places = saved_ops.max_pool(x, asked)
    torch.testing.assert_close(y, theirs, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(pooling.indices(places, asked), indices)
    gradient = numbers(*y.shape, dtype=y.dtype)
    expected = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *windows, (1, 1), False, indices)
    assert torch.equal(saved_ops.max_pool_backward(gradient, places, asked), expected)


def test_a_convolution_holds_one_large_map_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(True), nn.Conv2d(64, 64, 3)).cuda()
    x, saved, peaks = numbers(16, 3, 130, 130), compressed_activations("bitmap"), []
    for least in (1 << 40, 1):
        monkeypatch.setattr(convolution, "MIN_SPLIT_BYTES", least)
        with precision_mode("fp32", autotune=False):
            for _ in range(2):
                model.zero_grad()
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                with saved:
                    loss = model(x).sum()
                loss.backward()
                torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] - peaks[1] > 0.9 * 16 * 64 * 128 * 128 * 4


def test_saved_activations_take_less_memory() -> None:
    layers = [layer for _ in range(12) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
    model, x = nn.Sequential(*layers).cuda(), numbers(16, 64, 64, 64)
    grown = []
    for context in (torch.enable_grad(), compressed_activations("bitmap")):
        model(x).sum().backward()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        with context as saved:
            loss = model(x).sum()
        held = saved.statistics.held_bytes if saved else 0
        grown.append(torch.cuda.memory_allocated() - before)
        loss.backward()
    # What the allocator gave is what was counted, but for the ends of its blocks.
    assert grown[1] == pytest.approx(held, rel=0.02) and grown[1] < 0.75 * grown[0]
