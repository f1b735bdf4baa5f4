"""Every implementation equals the dense layer; the choice of implementation; argument checks."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lamina.accelerate.common.operands import transformed
from lamina.accelerate.methods.circulant import functional, reference
from lamina.accelerate.methods.circulant.config import IMPLS, Circulant
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear
from lamina.accelerate.runtime import triton_ops as shared
from lamina.errors import MissingError, UnsupportedError, UsageError

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@pytest.mark.parametrize("impl", [impl for impl in IMPLS if impl != "fused_rows"])  # which refuses float32
@pytest.mark.parametrize("shape", [(9,), (2, 9), (2, 3, 9)])
def test_every_implementation_equals_the_dense_layer(impl: functional.Impl, shape: tuple[int, ...]) -> None:
    x, w, b = torch.randn(shape), torch.randn(2, 3, 4), torch.randn(7)
    expected = F.linear(x, reference.dense_matrix(w, 7, 9), b)
    y = functional.linear(x, w, b, out_features=7, impl=impl)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("impl", ["reference", "kernel", "dense"])
def test_every_implementation_equals_the_dense_convolution(impl: functional.Impl, poisoned_empty: None) -> None:
    x, w, b = torch.randn(2, 6, 9), torch.randn(2, 3, 1, 4), torch.randn(6)
    steps = {"stride": (2,), "padding": (3,), "dilation": (2,)}
    expected = F.conv1d(x, reference.dense_matrix(w, 6, 3 * 2, 2), b, **steps, groups=2)
    y = functional.conv(x, w, b, out_channels=6, **steps, groups=2, impl=impl)
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("impl", ["kernel", "materialized"])
def test_in_place_changes_of_an_output_do_not_copy_gradients(impl: functional.Impl) -> None:
    for function, x, w in (
        (partial(functional.linear, out_features=7), torch.randn(3, 9), torch.randn(2, 3, 4)),
        (partial(functional.conv, out_channels=6), torch.randn(2, 6, 5), torch.randn(2, 3, 2, 4)),
        (partial(functional.conv, out_channels=6), torch.randn(2, 6, 3, 3), torch.randn(2, 1, 1, 2, 4)),
    ):
        y = function(x, w.requires_grad_(), impl=impl).relu_()
        assert "ReluBackward" in y.grad_fn.name()  # of a view it would be CopySlices
        plain = torch.autograd.grad(function(x, w, impl="reference").relu().square().sum(), w)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), w), plain)


@pytest.mark.parametrize("impl", ["reference", "kernel", "materialized", "dense"])
def test_every_implementation_flips_the_signs_of_its_inputs(impl: functional.Impl) -> None:
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0])
    for function, x, w in (
        (partial(functional.linear, out_features=7), torch.randn(3, 9), torch.randn(2, 3, 4)),
        (partial(functional.conv, out_channels=6, groups=2, padding=1), torch.randn(2, 6, 9), torch.randn(2, 3, 1, 4)),
    ):
        repeats = signs.repeat(3)[:9] if x.dim() == 2 else signs[:3].repeat(2)[:, None]
        results = []
        for images, s, name in ((x, signs, impl), (x * repeats, None, "reference")):
            leaves = [images.requires_grad_(), w.clone().requires_grad_()]
            y = function(*leaves, signs=s, impl=name)
            results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
        results[1][1] *= repeats
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_auto_is_the_reference_under_torch_func_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "has_kernels", lambda x: not transformed())
    x, w = torch.randn(2, 9), torch.randn(4, 5, 2)
    function = partial(functional.linear, out_features=7)
    assert functional.resolve_impl("auto", x) == "kernel"
    _, tangent = torch.func.jvp(lambda x: function(x, w), (x,), (x,))
    torch.testing.assert_close(tangent, function(x, w))  # linear maps are their own derivatives
    with pytest.raises(UnsupportedError, match='expected no transform of torch.func.*use impl="reference"'):
        torch.func.jvp(lambda x: function(x, w, impl="kernel"), (x,), (x,))


@pytest.mark.parametrize("impl", ["kernel", "materialized", "dense"])
@pytest.mark.parametrize("like", ["random", "expanded", "transposed"])
def test_weights_and_gradients_may_have_any_strides(impl: functional.Impl, like: str) -> None:
    for function, x, w in (
        (partial(functional.linear, out_features=7), torch.randn(2, 3, 9), torch.randn(4, 3, 2)),
        (partial(functional.conv, out_channels=6), torch.randn(2, 6, 3, 3), torch.randn(4, 2, 1, 2, 2)),
    ):
        w, found = w.permute(*reversed(range(w.dim()))), []
        for name, weight in ((impl, w), ("reference", w.contiguous())):
            leaves = x.clone().requires_grad_(), weight.detach().requires_grad_()
            y = function(*leaves, impl=name)
            torch.manual_seed(0)
            upstream = {
                "random": torch.randn(y.shape),
                "expanded": torch.ones(()).expand(y.shape),
                "transposed": torch.randn(y.shape[::-1]).permute(*reversed(range(y.dim()))),
            }
            found.append((y, *torch.autograd.grad(y, leaves, upstream[like])))
        for ours, plain in zip(*found, strict=True):
            torch.testing.assert_close(ours, plain)


def test_the_output_has_the_memory_format_of_the_input() -> None:
    x, w = torch.randn(2, 8, 3, 3), torch.randn(2, 1, 1, 2, 4)
    plain = functional.conv(x, w, out_channels=8, impl="kernel")
    last = functional.conv(x.contiguous(memory_format=torch.channels_last), w, out_channels=8, impl="kernel")
    assert plain.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain, last)


def test_the_former_name_of_an_implementation_is_read() -> None:
    x = torch.zeros(2, 3)
    assert functional.resolve_impl("expand", x) == Circulant(impl="expand").impl == "materialized"  # type: ignore[arg-type]
    layer = BlockCirculantLinear(8, 8, 4, impl="expand")  # type: ignore[arg-type]
    assert layer.impl == "materialized"
    x, layer.impl = torch.randn(2, 8), "expand"  # type: ignore[assignment]  # as an earlier version pickled it
    torch.testing.assert_close(layer(x), layer.to_dense()(x))


def test_auto_is_the_reference_off_the_gpu() -> None:
    assert functional.resolve_impl("auto", torch.zeros(2, 3, device="cpu")) == "reference"


@pytest.mark.gpu
def test_auto_on_the_gpu_is_the_kernels_except_in_float64() -> None:
    x = torch.zeros(1, device="cuda")
    assert functional.resolve_impl("auto", x) == "kernel"
    assert functional.resolve_impl("auto", x.double()) == "reference"


@pytest.mark.parametrize("impl", ["kernel", "materialized", "fused_rows"])
def test_kernels_without_triton_name_the_extra_to_install(
    impl: functional.Impl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional, "HAS_TRITON", False)
    with pytest.raises(MissingError, match="kernels extra"):
        functional.linear(torch.zeros(1, 4), torch.zeros(1, 1, 4), out_features=4, impl=impl)


def test_kernels_refuse_the_cpu_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "INTERPRETED", False)
    x, w = torch.zeros(1, 4, device="cpu"), torch.zeros(1, 1, 4, device="cpu")
    with pytest.raises(MissingError, match="expected tensors on a CUDA device, got cpu"):
        functional.linear(x, w, out_features=4, impl="kernel")


def test_a_recurrence_checks_its_shapes() -> None:
    inputs, weight, state = torch.zeros(3, 2, 32), torch.zeros(8, 2, 4), torch.zeros(2, 7)
    with pytest.raises(UsageError, match="8 by 3 blocks of size 4"):
        functional.recurrence(inputs, weight, torch.zeros(2, 9), torch.zeros(2, 9))
    with pytest.raises(UsageError, match="inputs, h, c: expected"):
        functional.recurrence(inputs, weight, state, torch.zeros(3, 7))
    with pytest.raises(UsageError, match="inputs, h, c: expected"):
        functional.recurrence(inputs[0], weight, state, state)
