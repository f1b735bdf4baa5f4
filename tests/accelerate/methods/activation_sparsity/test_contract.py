"""The laws of a method, run for layers that leave out zeros."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.accelerate.common.geometry import Conv2dGeometry
from lamina.accelerate.methods.activation_sparsity import Sparse, functional, ops, reference
from lamina.accelerate.methods.activation_sparsity import convert as cell
from lamina.accelerate.methods.activation_sparsity.cost import Calibration, PhaseImpls, checked
from lamina.accelerate.methods.activation_sparsity.ellpack import kernels as ellpack_kernels
from lamina.accelerate.methods.activation_sparsity.nn import SparseAdaptiveConv2d, SparseAdaptiveLinear
from lamina.accelerate.methods.activation_sparsity.row_union import kernels as row_union_kernels
from lamina.accelerate.methods.activation_sparsity.tiles import Tile
from lamina.errors import UnsupportedError
from lamina.spec import Cost
from lamina.testing.method_contract import Layer, MethodContract, Product

pytestmark = pytest.mark.usefixtures("where_kernels_run")

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def activations(*shape: int) -> Tensor:
    """What a ReLU gives, in numbers that float16 and bf16 hold, with a row of zeros."""
    x = (numbers(*shape) * 8).round().clamp(0) / 8
    x[:, 1] = 0
    return x


def linear(impls: PhaseImpls, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With operands whose rows are columns of others."""
    return functional.linear(x.mT.contiguous().mT, w.mT.contiguous().mT, b, impls=impls)


def conv(impls: PhaseImpls, steps: Any, layout: torch.memory_format, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.conv2d(x.contiguous(memory_format=layout), w, b, *steps, impls=impls)


class Sparsities:
    config = Sparse()
    cell: ModuleType = cell
    impls = ("dense", "nonzero", "row_union", "row_union_fp16", "reference")
    rounds_gradients: Mapping[str, str] = dict.fromkeys(
        ("nonzero", "row_union_fp16", "reference"), "the sparse operand is rounded to float16"
    )

    def roundtrip(self, layer: Any) -> Any:
        again = type(layer).from_dense(layer.to_dense(), impl=layer.impl)
        assert all(ours is theirs for ours, theirs in zip(layer.parameters(), again.parameters(), strict=True))
        return again

    def layers(self) -> Mapping[str, Layer]:
        return {
            "linear": Layer(lambda: nn.Linear(10, 7), (3, 10)),
            "linear without bias": Layer(lambda: nn.Linear(8, 8, bias=False), (2, 3, 8), compiled=False),
            "conv2d": Layer(lambda: nn.Conv2d(6, 8, (3, 2), (2, 1), padding=1), (2, 6, 5, 4)),
            "conv2d same": Layer(lambda: nn.Conv2d(4, 6, 3, padding="same"), (1, 4, 4, 5), compiled=False),
            "conv2d of one image": Layer(lambda: nn.Conv2d(4, 6, 3, bias=False), (4, 4, 5), compiled=False),
        }

    def refused(self) -> Mapping[str, nn.Module]:
        return {
            "activation": nn.ReLU(),
            "norm": nn.BatchNorm2d(8),
            "grouped": nn.Conv2d(8, 8, 3, groups=2),
            "reflected": nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            "uneven": nn.Conv2d(8, 8, 2, padding="same"),
            "lstm": nn.LSTM(4, 4),
        }

    def references(self) -> Iterable[tuple[str, Callable[..., Tensor], tuple[Tensor, ...]]]:
        zeros = torch.where(numbers(5, 6) > 0.3, 0.0, numbers(5, 6))
        sparse = reference.from_dense(zeros)
        yield "matmul", lambda a: reference.matmul(a, sparse), (numbers(3, 5),)
        yield "row_union", lambda a, z: reference.row_union_matmul(a, z.relu(), 2), (numbers(3, 5), numbers(5, 6))
        yield "columns", lambda x: reference.im2col(x, Conv2dGeometry(2, 2, 1, 2, 1, 0)), (numbers(1, 2, 3, 4),)

    def products(self) -> Iterable[Product]:
        for impl in ("nonzero", "row_union"):
            both = PhaseImpls(impl, impl, impl)
            for rows, inputs, outputs, dtype in ((1, 2, 1, FP32), (5, 9, 37, BF16), (17, 6, 20, FP16)):
                operands = activations(rows, inputs), numbers(outputs, inputs), numbers(outputs)
                # Gradients that are not zero lose what float16 cannot hold: only the forward pass is exact.
                impls = both if impl == "row_union" else both._replace(backward_data="dense")
                name = f"linear {rows}x{inputs}>{outputs} {impl}"
                yield Product(name, partial(linear, impls), F.linear, operands, dtype)
            operands = activations(2, 3, 4, 3), numbers(4, 3, 2, 1), numbers(4)
            steps = (2, 1), (1, 0), (1, 1)
            plain = partial(F.conv2d, stride=steps[0], padding=steps[1])
            for layout, dtype in ((torch.contiguous_format, FP32), (torch.channels_last, BF16)):
                ours = partial(conv, PhaseImpls(impl), steps, layout)
                yield Product(f"conv {impl}", ours, plain, operands, dtype)

    def operators(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(shape, requires_grad=True)

        steps = Conv2dGeometry(1, 2, 1, 1, 1, 0).pack()
        yield ops.linear, (leaf(3, 4), leaf(5, 4), leaf(5), "row_union", "nonzero", "dense", "same")
        yield ops.linear, (leaf(3, 4), leaf(5, 4), None, "nonzero", "dense", "row_union", "bf16")
        yield ops.conv, (leaf(1, 2, 2, 3), leaf(4, 2, 1, 2), leaf(4), steps, "row_union", "row_union", "same")
        yield ops.conv, (leaf(1, 2, 2, 3), leaf(4, 2, 1, 2), None, steps, "dense", "row_union", "same")
        yield ops.matmul, (leaf(3, 4), leaf(4, 5), "row_union", "same", True)

    def costs(self) -> Iterable[tuple[Cost, Cost]]:
        yield ellpack_kernels.to_ellpack_cost(3, 4, 5, 2), Cost(0, 24, 20 + 16)
        yield ellpack_kernels.nonzero_cost(7, 4, 3, 5, 2, 4), Cost(70, 20 + 16 + 42, 112)
        yield row_union_kernels.row_union_cost(7, 4, 3, 5, 2, 4), Cost(140, (21 + 10) * 4 + 20, 112)

    def faults(self) -> Mapping[str, tuple[Callable[[], object], tuple[str, ...]]]:
        x, w, image = torch.zeros(2, 8), torch.zeros(6, 8), torch.zeros(1, 4, 5, 5)
        kernel, bad = torch.zeros(3, 4, 3, 3), Sparse
        union = PhaseImpls("row_union", "row_union", "dense")

        def lin(**changes: Any) -> Callable[[], object]:
            operands: dict[str, Any] = {"x": x, "weight": w, "impls": union} | changes
            return lambda: functional.linear(**operands)

        def convolved(**changes: Any) -> Callable[[], object]:
            operands: dict[str, Any] = {"x": image, "weight": kernel, "impls": union} | changes
            return lambda: functional.conv2d(**operands)

        return {
            "impl": (lambda: bad(impl="row_unions"), ("row_unions", "did you mean 'row_union'")),
            "weights": (lambda: bad(weights="fp161"), ("fp161", "did you mean 'fp16'")),
            "speedup": (lambda: bad(min_speedup=0.9), ("at least 1", "got 0.9")),
            "margin": (lambda: SparseAdaptiveLinear(2, 2, margin=1.0), ("from 0 up to 1", "got 1.0")),
            "width": (lin(x=torch.zeros(2, 7)), ("(..., in)", "(2, 7)", "(6, 8)")),
            "bias": (lin(bias=torch.zeros(5)), ("expected (6,)", "got (5,)")),
            "type": (lin(weight=w.double()), ("torch.float32", "torch.float64", "autocast")),
            "integers": (lin(x=torch.zeros(2, 8, dtype=torch.int64)), ("floating point", "torch.int64")),
            "device": (lin(weight=w.to("meta")), ("with x", "meta")),
            "kernel type": (lin(x=x.double(), weight=w.double()), ("float32", "float64", "reference")),
            "kernel place": (lin(x=x.to("meta"), weight=w.to("meta")), ("CUDA device", "meta")),
            "impls": (lin(impls=PhaseImpls("auto")), ("impl 'auto' is unknown",)),
            "mixed": (lin(impls=PhaseImpls("reference", "row_union")), ("for all phases or for none",)),
            "channels": (convolved(x=torch.zeros(1, 3, 5, 5)), ("(N, C, H, W)", "(1, 3, 5, 5)")),
            "small": (convolved(x=torch.zeros(1, 4, 2, 5)), ("at least as large as the 3x3 kernel", "got 2x5")),
            "stride": (convolved(stride=(2, 2)), ("backward_data", "dense for strides (2, 2)", "row_union")),
            "weight phase": (
                convolved(impls=PhaseImpls("row_union", "dense", "row_union")),
                ("backward_weight", "got row_union"),
            ),
            "matrices": (lambda: functional.matmul(x, w), ("(M, K) and (K, N)", "(2, 8)", "(6, 8)")),
            "integer matrices": (lambda: functional.matmul(w.long(), x.mT.long()), ("floating point", "torch.int64")),
            "map": (lambda: functional.compress(torch.zeros(3)), ("matrix or map", "(3,)")),
            "matrix window": (lambda: functional.compress(x, Conv2dGeometry(2, 2)), ("with a window", "(2, 8)")),
            "panel": (lambda: functional.compress(x, panel=0), ("1 to 65536 rows", "got 0")),
            "tile": (lambda: Tile(16, 48, 16), ("power of two", "got 48")),
            "workers": (lambda: Tile(16, 16, 16, num_warps=32), ("1 to 16 warps",)),
            "calibration": (lambda: Calibration(1, 1, 0, 1, 1), ("positive numbers", "'union': 0")),
            "density": (lambda: checked(1.5), ("within 0..1", "got 1.5")),
            "same": (lambda: SparseAdaptiveConv2d(4, 4, 2, padding="same"), ("asymmetric",)),
        }


class TestSparsity(MethodContract):
    provider = Sparsities()


@pytest.mark.parametrize("layer", [SparseAdaptiveLinear(4, 3), SparseAdaptiveConv2d(4, 3, 2)], ids=str)
def test_state_dicts_are_the_dense_layers(layer: nn.Module) -> None:
    dense = layer.to_dense()
    assert type(dense) in (nn.Linear, nn.Conv2d)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {k: v.shape for k, v in dense.state_dict().items()}


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_that_is_not_zeros_is_refused_without_convert_too(mode: str) -> None:
    dense = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
    with pytest.raises(UnsupportedError, match=f"padding_mode='{mode}'.*pad in front of") as error:
        SparseAdaptiveConv2d.from_dense(dense)
    assert str(error.value) == cell.refusal(dense)
