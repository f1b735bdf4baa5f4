import pytest
import torch
from torch import Tensor

from lamina.accelerate.common import operands as operands
from lamina.accelerate.common.operands import (
    cast,
    check_operands,
    compute_dtype,
    has_kernels,
    observable,
    owned,
    transformed,
)
from lamina.errors import UnsupportedError, UsageError

X, WEIGHT, BIAS = torch.ones(3, 5), torch.ones(2, 5), torch.ones(2)


def test_layers_compute_in_the_type_of_their_input_or_in_autocasts() -> None:
    assert compute_dtype(X) is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(X) is torch.bfloat16
        assert compute_dtype(X.double()) is torch.float64, "autocast narrows no float64"
        assert compute_dtype(X.to("meta")) is torch.float32
    converted = cast(BIAS, torch.float16)
    assert cast(None, torch.float16) is None and converted is not None and converted.dtype is torch.float16


class OnGpu(Tensor):
    is_cuda = True


def test_kernels_compute_on_a_gpu_and_outside_of_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "HAS_TRITON", True)
    here, there, found = torch.ones(2, device="cpu"), torch.ones(2, device="cpu").as_subclass(OnGpu), list[bool]()

    def function(x: Tensor) -> Tensor:
        found.extend([transformed(), has_kernels(there)])
        return x

    torch.func.vmap(function)(here)
    assert found == [True, False] and not transformed()
    assert has_kernels(there) and not has_kernels(here)
    monkeypatch.setattr(operands, "HAS_TRITON", False)
    assert not has_kernels(there)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        (X.long(), WEIGHT, BIAS, "x: expected a floating point dtype, got torch.int64"),
        (X, WEIGHT, torch.ones(3), r"bias: expected \(2,\), got \(3,\)"),
        (X, WEIGHT.double(), BIAS, "weight: expected torch.float32 like x, got torch.float64; convert"),
        (X, WEIGHT, BIAS.half(), "bias: expected torch.float32 like x, got torch.float16"),
        (X, WEIGHT.to("meta"), BIAS, "weight: expected it on cpu with x, got meta"),
    ],
)
def test_what_cannot_be_computed_with_is_refused(x: Tensor, weight: Tensor, bias: Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_operands(x, weight, bias)


def test_what_can_is_not() -> None:
    check_operands(X, WEIGHT, None)
    check_operands(X, None, torch.ones(7), outputs=7)
    with torch.autocast("cpu", torch.bfloat16):
        check_operands(X.bfloat16(), WEIGHT, BIAS)


def test_an_owned_result_is_changed_in_place_without_copies_of_its_gradient() -> None:
    x = torch.randn(2, 6, requires_grad=True)
    y = owned(x * 2, (2, 3, 2)).relu_()
    assert y.grad_fn is not None and "ReluBackward" in y.grad_fn.name()  # of a view it would be CopySlices
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope, 2.0 * (x > 0))


def test_nested_inputs_are_refused_and_not_observed() -> None:
    rows = torch.nested.nested_tensor([torch.ones(2, 5), torch.ones(3, 5)], layout=torch.jagged)
    with pytest.raises(UnsupportedError, match="nested"):
        check_operands(rows, WEIGHT, BIAS)
    assert observable(X) and not observable(rows) and not observable(torch.eye(3).to_sparse())
