"""The laws of a method, run for block-circulant layers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import Circulant, functional, kernels, layer_ops, ops, reference
from lamina.accelerate.methods.circulant import convert as cell
from lamina.accelerate.methods.circulant.config import IMPLS, PUBLISHED
from lamina.accelerate.methods.circulant.lstm import kernels as lstm_kernels
from lamina.accelerate.methods.circulant.lstm import ops as recurrent
from lamina.accelerate.methods.circulant.materialized import convolution
from lamina.accelerate.methods.circulant.materialized import kernels as materialized_kernels
from lamina.accelerate.methods.circulant.materialized import ops as materialized
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear, BlockCirculantLSTM
from lamina.accelerate.methods.circulant.spectral import kernels as transform_kernels
from lamina.accelerate.methods.circulant.spectral import ops as transform
from lamina.spec import Cost
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
MAPS = [  # block size, outputs, inputs, rows: odd widths, batch 1, one block and many; too many to be exact by chance
    (2, 25, 19, 1), (4, 8, 12, 5), (7, 9, 15, 2), (16, 20, 17, 3), (64, 70, 64, 16),
]  # fmt: skip
CONVS = [  # block size, outputs, inputs, kernel, stride, padding, dilation, groups, image
    (4, 6, 10, (3, 2), (1, 2), (1, 0), (1, 1), 1, (1, 5, 4)),
    (3, 10, 8, (2, 1), (2, 1), (1, 1), (2, 1), 2, (2, 4, 3)),
]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def blocks(k: int, outputs: int, inputs: int, kernel: tuple[int, ...] = (), groups: int = 1) -> Tensor:
    p, q = groups * -(-(outputs // groups) // k), -(-(inputs // groups) // k)
    return numbers(p, *kernel, q, k)


def dense_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, reference.dense_matrix(w, len(b), x.shape[-1]), b)


def strided_linear(impl: functional.Impl, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With an input whose rows are columns of another, so that no stride is 1 but the wrong one."""
    return functional.linear(x.mT.contiguous().mT, w, b, out_features=len(b), impl=impl)


def relu_linear(impl: functional.Impl, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.linear(x, w, b, out_features=len(b), relu=True, impl=impl)


def dense_relu_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return dense_linear(x, w, b).relu()


def dense_conv(steps: dict[str, tuple[int, ...]], groups: int, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    matrix = reference.dense_matrix(w, len(b), x.shape[1], groups)
    return F.conv2d(x, matrix, b, **steps, groups=groups)


def dense_relu_conv(steps: dict[str, tuple[int, ...]], groups: int, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return dense_conv(steps, groups, x, w, b).relu()


def circulant_conv(
    steps: dict[str, tuple[int, ...]], groups: int, layout: torch.memory_format, impl: functional.Impl,
    x: Tensor, w: Tensor, b: Tensor, relu: bool = False,
) -> Tensor:  # fmt: skip
    x = x.contiguous(memory_format=layout)
    return functional.conv(x, w, b, out_channels=len(b), **steps, groups=groups, relu=relu, impl=impl)


def signed_bias(outputs: int) -> Tensor:
    """Far from the small products beside it, so that no rounding moves an output across zero."""
    return torch.arange(outputs, dtype=torch.float64) % 2 * 8 - 4


class Circulants:
    config = Circulant(block_size=4, impl="reference")
    cell: ModuleType = cell
    impls = tuple(impl for impl in IMPLS[1:] if impl != "fused_rows")  # which refuses few rows
    rounds_gradients: Mapping[str, str] = {}

    def roundtrip(self, layer: Any) -> Any:
        return type(layer).from_dense(layer.to_dense(), layer.block_size, impl=layer.impl)

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear": Layer(lambda: nn.Linear(10, 7), (3, 10)),
            "linear without bias": Layer(lambda: nn.Linear(8, 8, bias=False), (2, 3, 8), compiled=False),
            "conv1d": Layer(lambda: nn.Conv1d(10, 14, 3, dilation=2, padding=2), (2, 10, 9)),
            "conv2d": Layer(
                lambda: nn.Conv2d(12, 8, (3, 2), (2, 1), padding=1, groups=2, padding_mode="reflect"), (2, 12, 5, 4)
            ),
            "conv2d same": Layer(lambda: nn.Conv2d(4, 6, 3, padding="same"), (1, 4, 4, 5), compiled=False),
            "lstm": Layer(lambda: nn.LSTM(5, 6, 2, bidirectional=True), (3, 2, 5), compiled=False),
            "lstm batch first": Layer(lambda: nn.LSTM(4, 8, bias=False, batch_first=True), (2, 2, 4)),
        }

    def refused(self) -> Mapping[str, nn.Module]:
        return {
            "activation": nn.ReLU(),
            "norm": nn.BatchNorm2d(8),
            "transposed": nn.ConvTranspose2d(8, 8, 2),
            "depthwise": nn.Conv2d(8, 8, 3, groups=8),
            "projected": nn.LSTM(8, 8, proj_size=4),
        }

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        for k in (2, 3, 4):
            yield f"linear k={k}", partial(self._linear, "reference"), (numbers(2, 5), blocks(k, 3, 5), numbers(3))
        window = Conv2dProblem(1, 4, 3, 2, 2, 2, 1, 1, 0, 1, 1, 2)
        yield "conv", lambda x, w, b: reference.conv(x, w, b, 4, window), (
            numbers(1, 6, 4, 3), blocks(2, 4, 6, (2, 2), 2), numbers(4),
        )  # fmt: skip
        yield "dense matrix", lambda w: reference.dense_matrix(w, 5, 4), (blocks(3, 5, 4),)

    @staticmethod
    def _linear(impl: functional.Impl, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.linear(x, w, b, out_features=len(b), impl=impl)

    def products(self) -> Iterable[Product]:
        for k, outputs, inputs, rows in MAPS:
            operands = numbers(rows, inputs), blocks(k, outputs, inputs), numbers(outputs)
            for dtype in (FP32, BF16, FP16) if k == 4 else (FP32,) if k != 16 else (BF16,):
                for impl in ("kernel", "materialized"):
                    name = f"{impl} linear k={k} {inputs}>{outputs}"
                    yield Product(name, partial(strided_linear, impl), dense_linear, operands, dtype)
            for published in PUBLISHED:
                name = f"{published} linear k={k} {inputs}>{outputs}"
                yield Product(name, partial(strided_linear, published), dense_linear, operands, FP32)
            behind = operands[0] / inputs**0.5, operands[1], signed_bias(outputs)
            for dtype in (FP32, BF16, FP16) if k in (4, 16) else ():
                yield Product(f"relu linear k={k}", partial(relu_linear, "kernel"), dense_relu_linear, behind, dtype)
        for k, outputs, inputs, kernel, stride, padding, dilation, groups, image in CONVS:
            steps = {"stride": stride, "padding": padding, "dilation": dilation}
            batch, *sizes = image
            operands = (
                numbers(batch, inputs, *sizes), blocks(k, outputs, inputs, kernel, groups), numbers(outputs),
            )  # fmt: skip
            for layout in (torch.contiguous_format, torch.channels_last):
                behind = operands[0] / inputs, operands[1], signed_bias(outputs)
                ours = partial(circulant_conv, steps, groups, layout, "kernel", relu=True)
                plain = partial(dense_relu_conv, steps, groups)
                yield Product(f"relu conv k={k} {layout}", ours, plain, behind, FP16 if k == 4 else BF16)
                plain = partial(dense_conv, steps, groups)
                variants = ("kernel", FP32), *(("materialized", dtype) for dtype in (FP32, BF16, FP16))
                if groups == 1:
                    variants += tuple((published, FP32) for published in PUBLISHED)
                for impl, dtype in variants:
                    ours = partial(circulant_conv, steps, groups, layout, impl)
                    name = f"{impl} conv k={k} {layout}"
                    if (k, dtype) == (3, FP32):
                        why = "the bias gradient is a sum of 24 values, of which plain torch happens to round few"
                        yield Product(name, ours, plain, operands, dtype, worst=4.0, reason=why)
                    else:
                        yield Product(name, ours, plain, operands, dtype)

    def operators(self) -> Iterable[tuple[object, tuple[object, ...]]]:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, requires_grad=True)

        window = Conv2dProblem(1, 3, 2, 2, 1, 1, 1, 1, 0, 1, 1, 2)
        steps, slots, rows_in, rows_out = window.pack(), 1, window.rows_in, window.rows_out
        xs, ws, ys = leaf(slots, rows_in, 2, 2), leaf(slots, 4 * window.taps, 2, 1), leaf(slots, rows_out, 2, 4)
        signs = torch.tensor([1.0, -1.0, -1.0, 1.0])
        yield transform.dft, (leaf(2, 3, 5).mT.detach().requires_grad_(), signs, 4, 1, False, FP32)
        yield transform.idft, (leaf(2, 6, 2, 1), None, leaf(3), 4, 1, False, 3, 2, True, FP32)
        yield transform.dft_pair, (leaf(2, 6, 2), leaf(2, 4, 3), signs, 4, 2, FP32)
        yield transform.idft_pair, (leaf(2, 4, 2, 2), leaf(2, 6, 2, 1), signs, 4, 2, 6, 2, False, FP32, 3, FP32)
        yield ops.spectral_matmul, (xs, ws, steps)
        yield ops.spectral_matmul_backward_data, (ys, ws, steps)
        yield ops.spectral_matmul_backward_weight, (ys, xs, steps)
        yield ops.spectral_matmul_backward, (ys, xs, ws, steps)
        for bias, s in ((None, signs[:2]), (leaf(8), None)):
            for scaled in (False, True):
                operands = leaf(1, 4, 3, 2), leaf(4, 2, 1, 1, 2), s, bias
                yield layer_ops.layer, (*operands, 8, steps, FP32, scaled, bias is not None)
        split = torch.randn(2, *xs.shape).half(), torch.randn(2, *ws.shape).half(), torch.ones(1), torch.ones(1)
        whole = torch.randn(xs.shape), torch.randn(ws.shape), torch.ones(0), torch.ones(0)
        sizes = signs[:2], steps, (1, 4, 3, 2), (4, 2, 1, 1, 2), False, FP32, FP32
        all_wanted = (True, True, None), (True, False, FP32), (False, True, FP32), (False, False, FP32)
        for kept, wanted in product((split, whole), all_wanted):
            yield (
                layer_ops.layer_backward,
                (torch.randn(1, 8, window.out_height, window.out_width), *kept, *sizes, *wanted),
            )
        yield (
            layer_ops.layer,
            (leaf(2, 3, 5), leaf(1, 2, 4), None, leaf(3), 3, Conv2dProblem(6).pack(), FP32, False, False),
        )
        states = leaf(2, 7), leaf(2, 7)
        yield recurrent.recurrence, (leaf(3, 2, 32), leaf(2, 8, 2, 2), *states, 4)
        yield materialized.linear, (leaf(2, 5), leaf(2, 2, 4), 6)
        yield materialized.linear_backward_data, (leaf(2, 6), leaf(2, 2, 4), 5)
        yield materialized.linear_backward_weight, (leaf(2, 6), leaf(2, 5), 4, FP32)
        yield materialized.linear_backward, (leaf(2, 6), leaf(2, 5), leaf(2, 2, 4))
        yield materialized.dense_matrix, (leaf(4, 2, 2, 3), signs[:3], 10, 5, 2, False)
        yield materialized.dense_matrix, (leaf(4, 2, 2, 3), None, 10, 5, 2, True)
        x, w, dy = leaf(1, 6, 6), leaf(4, window.taps, 1, 3), leaf(1, 10, rows_out)
        for images in (x, x.detach().mT.contiguous().mT.requires_grad_(), x.detach().half().requires_grad_()):
            yield convolution.conv, (images, w.to(images.dtype), signs[:3], leaf(10).to(images.dtype), 10, steps)
        for wanted in ((True, True), (True, False), (False, True)):
            yield convolution.conv_backward, (dy, x, w, signs[:3], *(None,) * 4, steps, *wanted)
        yield materialized.diagonal_sums, (leaf(10, 5, 2), signs[:3], 3, 2)
        yield materialized.diagonal_sums, (leaf(10, 2, 5).mT, None, 3, 2)

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        # Two rows of three blocks of 4: each a 4 by 4 matrix times 4 numbers; bf16 in, fp32 out.
        yield transform_kernels.dft_cost(2, 3, 4, 2, 4), Cost(6 * 32, 6 * 4 * 2, 6 * 4 * 4)
        # A block of 3 fills 2 slots, one of whose 4 numbers is always zero but computed and stored.
        yield transform_kernels.dft_cost(1, 1, 3, 4, 4), Cost(24, 12, 16)
        # 2 states of 3 blocks of 4: five transforms each; gates in and out, spectra of 4 and 1, state and cells.
        yield lstm_kernels.step_cost(2, 3, 4, 2, 2), Cost(6 * 5 * 32, 6 * 4 * (8 + 8 + 4), 6 * 4 * (8 + 2 + 2 + 4))
        # 5 rows, 2 by 3 blocks, 2 slots: 60 complex products of 8 operations.
        yield (
            kernels.spectral_matmul_cost(Conv2dProblem(5), 2, 3, 2, 4),
            Cost(480, 2 * 2 * (15 + 6) * 4, 2 * 2 * 10 * 4),
        )
        # A 2x2 kernel on a 3x3 image leaves 2x2 pixels, each of 4 taps.
        yield (
            kernels.spectral_matmul_cost(Conv2dProblem(1, 3, 3, 2, 2), 1, 1, 1, 2),
            Cost(128, 2 * (9 + 4) * 2, 2 * 4 * 2),
        )
        # 2 rows by 5 inputs by 6 outputs; 2 by 2 blocks of 4 to read.
        yield materialized_kernels.linear_cost(2, 6, 5, 4, 4), Cost(120, (10 + 16) * 4, 12 * 4)
        yield materialized_kernels.dense_matrix_cost(16, 30, 2), Cost(0, 32, 60)

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        linear = BlockCirculantLinear(8, 6, 4, impl="reference")
        image = BlockCirculantConv2d(8, 6, 3, block_size=4)
        x, w = torch.zeros(2, 8), torch.zeros(2, 2, 4)
        broken = nn.Linear(8, 8)
        nn.init.constant_(broken.weight, float("nan"))

        def apply(**changes: object) -> Callable[[], object]:
            operands = {"x": x, "weight": w, "bias": None, "out_features": 6, "impl": "reference"} | changes
            return lambda: functional.linear(**operands)  # type: ignore[arg-type]

        return {
            "block size 1": (lambda: Circulant(block_size=1), ("2 to 256", "got 1")),
            "block size 257": (lambda: Circulant(block_size=257), ("2 to 256", "got 257")),
            "block size true": (lambda: BlockCirculantLinear(8, 8, True), ("integer", "True")),
            "block size 4.0": (lambda: Circulant(block_size=4.0), ("integer", "4.0")),  # type: ignore[arg-type]
            "init": (lambda: Circulant(init="best"), ("init 'best'", "fresh, project")),  # type: ignore[arg-type]
            "impl": (lambda: Circulant(impl="kernels"), ("kernels", "did you mean 'kernel'")),  # type: ignore[arg-type]
            "activation": (
                lambda: BlockCirculantLinear(8, 8, 4, activation="gelu"),  # type: ignore[arg-type]
                ("activation", "'relu' or None", "'gelu'"),
            ),
            "no width": (lambda: BlockCirculantLinear(0, 8, 4), ("in_features", "at least 1", "got 0")),
            "groups": (lambda: BlockCirculantConv2d(8, 6, 3, groups=4), ("divisor of 8 and 6", "got 4")),
            "kernel": (lambda: BlockCirculantConv2d(8, 6, (3, 0)), ("kernel_size", ">= 1", "(3, 0)")),
            "padding": (lambda: BlockCirculantConv2d(8, 6, 3, padding="full"), ("'same' or 'valid'", "full")),
            "same stride": (lambda: BlockCirculantConv2d(8, 6, 3, 2, "same"), ("stride of 1", "(2, 2)")),
            "wrong width": (lambda: linear(torch.zeros(2, 7)), ("expected 8", "(2, 7)")),
            "wrong channels": (lambda: image(torch.zeros(1, 7, 5, 5)), ("expected 8", "(1, 7, 5, 5)")),
            "small image": (lambda: image(torch.zeros(1, 8, 2, 2)), ("3x3 kernel", "got 2x2")),
            "wrong blocks": (apply(weight=torch.zeros(3, 2, 4)), ("2 by 2 blocks", "got 3 by 2")),
            "weight axes": (apply(weight=torch.zeros(2, 8)), ("(p, q, k)", "(2, 8)")),
            "signs": (apply(signs=torch.ones(8)), ("expected (4,)", "got (8,)")),
            "bias size": (apply(bias=torch.zeros(5)), ("expected (6,)", "got (5,)")),
            "integers": (apply(x=torch.zeros(2, 8, dtype=torch.int64)), ("floating point", "torch.int64")),
            "mixed types": (apply(x=x.double()), ("torch.float64", "torch.float32", "autocast")),
            "mixed devices": (apply(x=x.to("meta")), ("on meta", "got")),
            "kernel on meta": (
                apply(x=x.to("meta"), weight=w.to("meta"), impl="kernel"),
                ("expected tensors on a CUDA device", "meta"),
            ),
            "kernel type": (
                apply(x=x.to(torch.float8_e4m3fn), weight=w.to(torch.float8_e4m3fn), impl="kernel"),
                ("expected one of float32, bfloat16, float16, float64", "float8"),
            ),
            "materialized conv in float64": (
                lambda: functional.conv(
                    torch.zeros(1, 8, 3, 3).double(), image.weight.double(), out_channels=6, impl="materialized"
                ),
                ("expected one of float32, bfloat16, float16, got torch.float64", "reference"),
            ),
            "published type": (
                apply(x=x.bfloat16(), weight=w.bfloat16(), impl="fusion"), ("expected float32", "torch.bfloat16"),
            ),
            "published groups": (
                lambda: functional.conv(
                    torch.zeros(1, 8, 3, 3), torch.zeros(2, 1, 1, 1, 4), out_channels=8, groups=2, impl="o1"
                ),
                ("impl=o1", "groups=2"),
            ),
            "not finite": (lambda: cell.replace(broken, Circulant(block_size=4)), ("finite", "got 64")),
            "lstm features": (lambda: BlockCirculantLSTM(8, 8, block_size=4)(torch.zeros(2, 1, 7)), ("8", "(2, 1, 7)")),
            "lstm steps": (lambda: BlockCirculantLSTM(8, 8, block_size=4)(torch.zeros(0, 1, 8)), ("one time step",)),
            "lstm state": (
                lambda: BlockCirculantLSTM(8, 8, block_size=4)(torch.zeros(2, 3, 8), (torch.zeros(1, 2, 8),) * 2),
                ("(1, 3, 8)", "(1, 2, 8)"),
            ),
            "narrow": (
                lambda: cell.replace(nn.Linear(8, 3), Circulant(block_size=4)), ("block size 4", "3 output features"),
            ),
        }  # fmt: skip


class TestCirculant(MethodContract):
    provider = Circulants()
