"""The fused kernels through the public functional and modules: on the GPU, and as C++ on the CPU with one warp."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lamina
from lamina.accelerate.methods.circulant import candidates as cell
from lamina.accelerate.methods.circulant import functional
from lamina.accelerate.methods.circulant.activations import ACTIVATIONS, code
from lamina.accelerate.methods.circulant.fused_rows import cuda, ops
from lamina.accelerate.methods.circulant.fused_rows.cuda import RowTile, WeightTile
from lamina.accelerate.methods.circulant.nn import (
    BlockCirculantConv2d,
    BlockCirculantLinear,
    BlockCirculantLSTM,
    allow_fallback,
)
from lamina.accelerate.runtime import launch_cache
from lamina.accelerate.select import observe
from lamina.errors import LaminaError, MissingError, UnsupportedError
from lamina.run import precision_mode
from lamina.testing.cuda_on_cpu import KernelOnCpu

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SIZES = [(64, 12, 5, 1001), (32, 7, 33, 2113), (128, 3, 9, 4097), (16, 5, 1, 1000)]  # block size, p, q, rows


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels as C++ on the CPU, with one warp, and for few rows."""
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    monkeypatch.setattr(cuda, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(cuda, "row_tile", lambda *_: RowTile(1, 8, 1, staged=True, prefetch=True))
    monkeypatch.setattr(cuda, "weight_tile", lambda *_: WeightTile(1, 1, 1))
    monkeypatch.setattr(ops, "MIN_ROWS", 4)
    launch_cache.clear()
    yield
    launch_cache.clear()


def step(layer: nn.Module, impl: str, x: Tensor, gy: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The output and the gradients of the input and of all parameters; under autocast to ``dtype``."""
    layer.impl = impl  # type: ignore[assignment]
    leaf = x.detach().requires_grad_()
    with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
        y = layer(leaf)
    return [y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], gy.to(y.dtype))]


def assert_close(ours: list[Tensor], layer: nn.Module, x: Tensor, gy: Tensor, dtype: torch.dtype) -> None:
    """Every result, as norms, within the rounding of a few operands in 16 bits, or in TF32 of float32."""
    exact = step(layer.double(), "reference", x.double(), gy.double())
    eps = 2**-10 if dtype == FP32 else torch.finfo(dtype).eps
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= 3 * eps * b.norm()  # also of what is not a number


@pytest.mark.parametrize(
    ("dtype", "signs", "activations"),
    [
        (BF16, False, {}),
        (BF16, True, {"input_activation": "relu"}),
        (BF16, True, {"input_activation": "gelu"}),
        (FP16, True, {"activation": "relu"}),
        (FP16, False, {"input_activation": "gelu_tanh"}),
    ],
)
def test_a_step_under_autocast_on_the_cpu(
    emulated: None, poisoned_empty: None, dtype: torch.dtype, signs: bool, activations: dict[str, Any]
) -> None:
    layer = BlockCirculantLinear(96, 64, 32, signs=signs, **activations)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(64) % 2 * 8 - 4)  # type: ignore[union-attr]  # no output is near zero
    x, gy = torch.randn(7, 3, 96).transpose(0, 1), torch.randn(3, 7, 64).to(dtype).float()
    ours = step(layer, "fused_rows", x, gy, dtype)
    assert [one.dtype for one in ours] == [dtype, FP32, FP32, FP32]
    assert layer.executed("forward") == ("circulant[block_size=32,impl=fused_rows]", "requested")
    assert_close(ours, layer, x, gy, dtype)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Float32 is multiplied as TF32."""
    with precision_mode("tf32", autotune=False):
        yield


@pytest.mark.parametrize(("signs", "first"), [(False, "relu"), (True, "relu"), (True, "gelu"), (False, "gelu_tanh")])
def test_a_step_in_tf32_on_the_cpu(emulated: None, tf32: None, poisoned_empty: None, signs: bool, first: Any) -> None:
    layer = BlockCirculantLinear(96, 64, 32, signs=signs, input_activation=first, activation="relu" if signs else None)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(64) % 2 * 8 - 4)  # type: ignore[union-attr]  # no output is near zero
    x, gy = torch.randn(7, 3, 96).transpose(0, 1), torch.randn(3, 7, 64)
    for _ in range(3):  # as it is, recorded, and replayed
        ours = step(layer, "fused_rows", x, gy)
    assert [one.dtype for one in ours] == [FP32] * 4
    assert_close(ours, layer, x, gy, FP32)


def test_without_tf32_float32_is_refused_after_it_was_computed(emulated: None) -> None:
    layer, x = BlockCirculantLinear(32, 32, 16, impl="fused_rows"), torch.randn(6, 32)
    with precision_mode("tf32", autotune=False):
        layer(x)
    with pytest.raises(UnsupportedError, match="float32 with TF32 allowed, got float32 without TF32"):
        layer(x)


@pytest.mark.parametrize("signs", [False, True])
def test_a_pointwise_convolution_in_channels_last_on_the_cpu(emulated: None, signs: bool) -> None:
    relus: Any = {"activation" if signs else "input_activation": "relu"}
    layer = BlockCirculantConv2d(64, 32, 1, block_size=16, signs=signs, **relus)
    with torch.no_grad():
        layer.bias.copy_(torch.arange(32) % 2 * 8 - 4)  # type: ignore[union-attr]  # no output is near zero
    x = torch.randn(2, 64, 3, 5).contiguous(memory_format=torch.channels_last)
    gy = torch.randn(2, 32, 3, 5).bfloat16().float()
    ours = step(layer, "fused_rows", x, gy, BF16)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    assert_close(ours, layer, x, gy, BF16)
    with pytest.raises(UnsupportedError, match="expected images in channels-last"):
        step(layer.to(BF16), "fused_rows", x.contiguous().to(BF16), gy)
    other = BlockCirculantConv2d(64, 32, 3, block_size=16, impl="fused_rows").to(BF16)
    with pytest.raises(UnsupportedError, match="1x1 kernel with stride 1"):
        other(x.to(BF16))


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("signed", [False, True])
def test_only_requested_gradients_are_computed_and_they_are_differentiable(
    emulated: None, tf32: None, signed: bool, dtype: torch.dtype
) -> None:
    x, w = torch.randn(6, 32).to(dtype), torch.randn(2, 2, 16).to(dtype).requires_grad_()
    signs = torch.randn(16).sign().to(dtype) if signed else None
    y = functional.linear(x, w, out_features=32, signs=signs, impl="fused_rows")
    (dw,) = torch.autograd.grad(y.float().square().sum(), w)
    assert dw.shape == w.shape
    leaves, second = (x.clone().requires_grad_(), w), []
    bias = (torch.arange(32) % 2 * 80 - 40).to(dtype)
    for impl in ("fused_rows", "reference"):
        around: Any = {"input_activation": None if signed else "gelu", "relu": signed}
        y = functional.linear(*leaves, bias, out_features=32, signs=signs, **around, impl=impl)
        first = torch.autograd.grad(y.sum(), leaves, create_graph=True)
        second.append(torch.autograd.grad(sum(one.float().square().sum() for one in first), leaves))  # type: ignore[arg-type]
    for a, b in zip(*second, strict=True):
        assert (a - b).norm() <= 0.05 * b.norm()


def test_gradients_of_a_double_backward_pass() -> None:
    signs = torch.tensor([1.0, -1, -1, 1])
    sizes = (3, 4), (3, 8), (1, 2, 4)
    gy, x, w = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes)
    for check in gradcheck, gradgradcheck:
        for activation in (None, *ACTIVATIONS):
            gradients = partial(ops.differentiable_gradients, signs=signs, activation=code(activation))
            assert check(gradients, (gy, x, w), fast_mode=True)
    for activation in (None, *ACTIVATIONS):
        y = functional.linear(x, w, out_features=4, signs=signs, input_activation=activation, impl="reference")
        expected = torch.autograd.grad(y, (x, w), gy)
        torch.testing.assert_close(ops.differentiable_gradients(gy, x, w, signs, code(activation)), expected)


@pytest.mark.parametrize("dtype", [FP32, torch.float64, torch.int8])
def test_signs_of_any_dtype_and_strides(emulated: None, dtype: torch.dtype) -> None:
    x, w = torch.randn(6, 32).to(BF16), torch.randn(1, 2, 16).to(BF16)
    signs = torch.randn(16, 2).sign().to(dtype)[:, 0]
    y = functional.linear(x, w, out_features=16, signs=signs, impl="fused_rows")
    flipped = functional.linear(x * signs.to(BF16).repeat(2), w, out_features=16, impl="fused_rows")
    assert torch.equal(y, flipped)


def test_sign_flips_are_no_operators_of_their_own(emulated: None) -> None:
    class Observed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    layer, x = BlockCirculantLinear(32, 32, 16, bias=False, signs=True, impl="fused_rows").to(BF16), torch.randn(6, 32)
    leaf, names = x.to(BF16).requires_grad_(), list[str]()
    with Observed():
        torch.autograd.grad(layer(leaf), [leaf, layer.weight], torch.ones(6, 32, dtype=BF16))
    lamina = [name for name in names if name.startswith("lamina::")]
    assert lamina == ["lamina::circulant_fused_rows", "lamina::circulant_fused_rows_backward"]
    assert not [name for name in names if name.startswith("aten::mul")]


def test_a_kernel_that_forgets_the_signs_is_not_selected(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = BlockCirculantLinear(32, 32, 16, signs=True).to(BF16)
    layer.signs.copy_(torch.arange(16) % 2 * 2 - 1)  # type: ignore[union-attr]
    call = observe(nn.Sequential(layer), ["0"], torch.randn(6, 32).to(BF16))["0"]
    for training in (False, True):
        assert cell.agreeing(layer, call, training, "fused_rows", "kernel").signs is layer.signs
    right = cuda.run_rows
    monkeypatch.setattr(cuda, "run_rows", lambda *args, signs, **options: right(*args))
    launch_cache.clear()
    for training in (False, True):
        with pytest.raises(UnsupportedError, match="impl=fused_rows differs from impl=kernel"):
            cell.agreeing(layer, call, training, "fused_rows", "kernel")


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_operators_obey_the_rules_of_the_library(dtype: torch.dtype, tf32: None) -> None:
    check_operators("cpu", dtype)


def check_operators(device: str, dtype: torch.dtype, rows: int = 5) -> None:
    x, w = torch.randn(rows, 64, device=device).to(dtype), torch.randn(2, 4, 16, device=device)
    bias, signs = torch.randn(32, device=device), torch.randn(16, device=device).sign()
    for each, s, b in ((x, None, bias), (x[:, None], None, None), (x, signs, None), (x[:, None], signs, bias)):
        leaf, weight, b = (None if one is None else one.clone().requires_grad_() for one in (each, w, b))
        torch.library.opcheck(ops.linear, (leaf, weight, s, b, code("gelu") if s is None else 0, b is not None))
    y, spectra = ops.linear(x, w, signs, None, 0, False)
    for s, *wanted in (
        (None, True, True, code("relu"), None), (signs, True, True, 0, FP32), (signs, True, False, 0, dtype),
        (None, False, True, code("gelu"), FP32), (signs, False, False, 0, FP32),
    ):  # fmt: skip
        torch.library.opcheck(ops.linear_backward, (y, x, spectra, s, [2, 4, 16], FP32, *wanted))


def test_shapes_and_flops_need_no_device() -> None:
    x, w = torch.empty(8, 2000, 96, dtype=BF16, device="meta"), torch.empty(5, 3, 32, device="meta")
    y, spectra = ops.linear(x, w, None, None, 0, False)
    assert (y.shape, y.dtype, spectra.shape) == ((8, 2000, 160), BF16, (1, 2, 2, 2, 32, 4))
    dx, dw, db = ops.linear_backward(y, x, spectra, None, [5, 3, 32], FP32, True, True, 0, FP32)
    assert (dx.shape, dx.dtype, dw.shape, dw.dtype, db.shape, db.dtype) == (x.shape, BF16, w.shape, FP32, (160,), FP32)
    with FlopCounterMode(display=False) as counter:
        ops.linear(x, w, None, None, 0, False)
    assert 0 < counter.get_total_flops() < 2 * 16000 * 160 * 96  # fewer than the dense product


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "message"),
    [
        (BlockCirculantLinear(64, 64, 32), (1000, 64), FP32, "bfloat16 or float16"),
        (BlockCirculantLinear(64, 64, 32), (999, 64), BF16, "at least 1000 rows, got 999"),
        (BlockCirculantLinear(60, 60, 20), (1000, 60), BF16, "block size of 16, 32, 64 or 128, got 20"),
        (BlockCirculantLinear(65, 64, 32), (1000, 65), BF16, "multiples of the block size 32, got 65"),
        (BlockCirculantLinear(64, 8192, 64), (1000, 64), BF16, "spectra fit shared memory, got rows of 8192"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused_with_its_reason(
    layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer.impl = "fused_rows"  # type: ignore[assignment]
    with pytest.raises(MissingError, match="expected tensors on a CUDA device, got cpu"):
        layer.to(dtype)(torch.zeros(shape, dtype=dtype))
    monkeypatch.setattr(cuda, "kernel_class", KernelOnCpu)
    with pytest.raises(UnsupportedError, match=message):
        layer(torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_selected_layer_computes_what_its_implementation_refuses(emulated: None, compiled: bool) -> None:
    linear = BlockCirculantLinear(32, 32, 16, impl="fused_rows", input_activation="relu")
    pixels = BlockCirculantConv2d(32, 32, 1, block_size=16, impl="fused_rows")
    image = torch.randn(2, 32, 3, 5)
    others = (
        (linear, torch.randn(3, 32).to(BF16), "at least 4 rows"),
        (linear, torch.randn(6, 32), "float32 without TF32"),  # training was under autocast
        (linear, torch.randn(6, 32).double(), "got float64"),
        (pixels, image.to(BF16), "channels-last"),
    )
    for layer, x, refusal in others:
        selected = copy.deepcopy(layer).to(x.dtype)
        with pytest.raises(UnsupportedError, match=refusal):
            selected(x)
        allow_fallback(selected)
        run = torch.compile(selected, backend="eager", fullgraph=True) if compiled else selected
        y = run(x)
        selected.impl = "reference"  # type: ignore[assignment]
        torch.testing.assert_close(y, selected(x), rtol=2e-2 if x.dtype == BF16 else 1e-4, atol=2e-2)


def test_what_was_selected_is_no_request(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = BlockCirculantLinear(32, 32, 16, impl="fused_rows").to(BF16)
    few = observe(nn.Sequential(layer), ["0"], torch.randn(6, 32).to(BF16))["0"]
    monkeypatch.setattr(cell, "has_kernels", lambda x: True)
    asked: Any = Any
    assert [*cell.candidates(layer, few, asked)] == ["impl=fused_rows"]
    assert layer.executed("forward") == ("circulant[block_size=16,impl=fused_rows]", "requested")
    allow_fallback(layer)
    again = cell.candidates(layer, few, asked)
    assert [*again] == ["impl=kernel", "impl=materialized", "impl=dense"]  # not what would compute something else
    assert all(make().fallback for make in again.values())
    assert layer.executed("forward")[1] == "selected; auto computes what it refuses"
    monkeypatch.setattr(functional, "INTERPRETED", False)
    assert layer.executed("forward") == ("circulant[block_size=16,impl=reference]", "auto on cpu")


def test_without_a_gpu_a_selected_layer_is_computed_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "INTERPRETED", False)
    layers = BlockCirculantLinear(8, 8, 4, impl="kernel"), BlockCirculantLSTM(8, 8, block_size=4, impl="kernel")
    for layer in layers:
        allow_fallback(layer)
        x = torch.randn(2, 3, 8)
        assert functional.impl_for("kernel", x, True) == "reference"
        y, _ = layer(x), setattr(layer, "impl", "reference")
        torch.testing.assert_close(y, layer(x))


def test_a_kernel_that_does_not_compile_is_a_refusal(emulated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise LaminaError("the CUDA source does not compile")

    monkeypatch.setattr(cuda, "kernel_class", broken)
    with pytest.raises(UnsupportedError, match="fused_rows: the CUDA source does not compile"):
        functional.linear(
            torch.zeros(5, 16).to(BF16), torch.zeros(1, 1, 16).to(BF16), out_features=16, impl="fused_rows"
        )


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "offered"),
    [
        (BlockCirculantLinear(64, 64, 32), (10, 100, 64), BF16, True),
        (BlockCirculantLinear(64, 64, 32), (999, 64), BF16, False),
        (BlockCirculantLinear(64, 64, 32), (1000, 64), FP32, False),
        (BlockCirculantLinear(64, 64, 8), (1000, 64), FP16, False),
        (BlockCirculantConv2d(32, 32, 1, block_size=16), (1, 32, 40, 25), FP16, True),
        (BlockCirculantConv2d(32, 32, 3, block_size=16), (1, 32, 40, 25), FP16, False),
        (BlockCirculantLSTM(32, 32, block_size=16), (100, 10, 32), BF16, False),
    ],
)
def test_it_is_offered_to_a_selection_where_there_are_many_rows(
    layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = observe(nn.Sequential(layer.to(dtype)), ["0"], torch.zeros(shape, dtype=dtype))["0"]
    monkeypatch.setattr(cell, "has_kernels", lambda x: True)
    assert ("impl=fused_rows" in cell.candidates(layer, call, None)) == offered  # type: ignore[arg-type]
    with precision_mode("tf32", autotune=False):
        in_tf32 = "impl=fused_rows" in cell.candidates(layer, call, None)  # type: ignore[arg-type]
    assert in_tf32 == (offered or dtype == FP32)
    monkeypatch.setattr(cell, "has_kernels", lambda x: False)
    assert "impl=fused_rows" not in cell.candidates(layer, call, None)  # type: ignore[arg-type]


def test_a_state_dict_does_not_depend_on_the_implementation() -> None:
    layer, other = (BlockCirculantLinear(64, 32, 16, impl=impl) for impl in ("fused_rows", "reference"))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    assert "impl=fused_rows" in repr(layer)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("mode", ["plain", "autocast", "strided", "compiled", "graph"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_step_on_the_gpu(
    sizes: tuple[int, int, int, int], mode: str, signs: bool, dtype: torch.dtype, tf32: None, poisoned_empty: None
) -> None:
    if mode == "autocast" and dtype == FP32:
        pytest.skip("autocast is to 16 bits")
    k, p, q, rows = sizes
    first: Any = ("gelu" if mode in ("graph", "compiled") else "relu") if signs else None
    layer = BlockCirculantLinear(q * k, p * k, k, signs=signs, input_activation=first, device="cuda")
    x, gy = torch.randn(rows, q * k, device="cuda").to(dtype), torch.randn(rows, p * k, device="cuda").to(dtype)
    if mode == "strided":
        x, gy = x.t().contiguous().t(), torch.cat([gy.flatten()[:1], gy.flatten()])[1:].view_as(gy)
    if mode != "autocast":
        layer.to(dtype)
    cast = dtype if mode == "autocast" else None
    if mode == "graph":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(layer, "fused_rows", x, gy)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                ours = step(layer, "fused_rows", x, gy)
            x.copy_(x.flip(0))
            graph.replay()
        torch.cuda.synchronize()
    elif mode == "compiled":
        torch.compiler.reset()  # each case is a recompilation of the same code
        layer.impl = "fused_rows"
        leaf = x.clone().requires_grad_()
        y = torch.compile(layer, fullgraph=True)(leaf)
        ours = [y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], gy)]
    else:
        for _ in range(4):  # as it is, recorded, and replayed
            ours = step(layer, "fused_rows", x, gy, cast)
    assert_close(ours, layer, x, gy, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_operators_obey_the_rules_of_the_library_on_the_gpu(dtype: torch.dtype, tf32: None) -> None:
    check_operators("cuda", dtype, 1001)


@pytest.mark.gpu
def test_a_selection_in_tf32_tries_it_on_the_gpu() -> None:
    x = torch.randn(6304, 768, device="cuda")
    for precision, tried in (("tf32", True), ("fp32", False)):
        model = nn.Sequential(nn.Linear(768, 3072)).cuda()
        with precision_mode(precision, autotune=False):
            _, record = lamina.convert(model, lamina.Circulant(64), example=x, select="measure", mode="graph")
        (selection,) = [layer.selection for layer in record.layers]
        assert selection is not None
        assert any("fused_rows" in impl for impl in selection.times_us) == tried
