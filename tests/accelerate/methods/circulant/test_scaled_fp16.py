"""Layers of float32 are multiplied as float16 under scales: as accurately, whatever the scale of their random."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lamina.accelerate.common.split_fp16 import ops as split_fp16
from lamina.accelerate.methods.circulant import functional, reference, scaled_fp16
from lamina.accelerate.methods.circulant.basis import basis, growth
from lamina.accelerate.methods.circulant.nn import BlockCirculantConv2d, BlockCirculantLinear
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

pytestmark = pytest.mark.usefixtures("where_kernels_run")

STEPS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}


@pytest.fixture(autouse=True, params=["tf32", "fp32"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The precision of float32 matmuls; scaled fp16 also for small layers."""
    monkeypatch.setattr(scaled_fp16, "scaled_fp16_pays", lambda *_: True)
    with precision_mode(request.param, autotune=False):
        yield request.param


def rounded(x: Tensor, mode: str) -> Tensor:
    """Float32 random as they are multiplied: TF32 holds them rounded to nearest, and sums them exactly."""
    return x if mode == "fp32" else ((x.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32).double()


def outputs_of(w: Tensor) -> int:
    """Fewer outputs than the blocks have rows."""
    return w.shape[0] * w.shape[-1] - 2


def linear(impl: functional.Impl, x: Tensor, w: Tensor) -> Tensor:
    return functional.linear(x, w, out_features=outputs_of(w), impl=impl)


def conv(impl: functional.Impl, x: Tensor, w: Tensor) -> Tensor:
    return functional.conv(x, w, out_channels=outputs_of(w), **STEPS, impl=impl)


def dense_linear(x: Tensor, matrix: Tensor) -> Tensor:
    return F.linear(x, matrix)


def dense_conv(x: Tensor, matrix: Tensor) -> Tensor:
    return F.conv2d(x, matrix, None, **STEPS)


RANDOM = torch.Generator().manual_seed(0)


def random(*sizes: int) -> Tensor:
    """The same values in every process, independent of earlier imports."""
    return torch.randn(sizes, generator=RANDOM)


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Tensor, Tensor]] = {
    "linear": (linear, dense_linear, random(17, 310), random(9, 10, 32)),
    "many rows": (linear, dense_linear, random(1100, 20), random(3, 4, 5)),
    "conv": (conv, dense_conv, random(1, 120, 7, 9), random(2, 3, 3, 2, 32)),
    "channels last": (
        conv, dense_conv, random(1, 120, 7, 9).to(memory_format=torch.channels_last), random(2, 3, 3, 2, 32),
    ),
}  # fmt: skip


def with_gradients(function: Callable[..., Tensor], x: Tensor, w: Tensor, g: Tensor | None) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y) if g is None else g.view(y.shape))


def dense(w: Tensor, x: Tensor) -> Tensor:
    return reference.dense_matrix(w, outputs_of(w), x.shape[1], STEPS["groups"] if w.dim() > 3 else 1)


@pytest.mark.parametrize(
    ("mode", "name", "scale"),
    [
        *product(("tf32", "fp32"), ("linear",), (1, 1e-15, 1e15)),
        *product(("tf32", "fp32"), ("conv",), (1e15,)),
        *product(("tf32", "fp32"), ("channels last",), (1e-15,)),
        ("tf32", "many rows", 1),
    ],
    indirect=["mode"],
)
def test_outputs_and_gradients_are_as_accurate_as_dense_ones(
    mode: str, name: str, scale: float, poisoned_empty: None
) -> None:
    ours, plain, x, w = (one.to(torch.get_default_device()) if isinstance(one, Tensor) else one for one in CASES[name])
    x = x * scale
    g = torch.randn_like(ours("reference", x, w)) / scale
    mine = with_gradients(lambda x, w: ours("kernel", x, w), x, w, g)
    exact = with_gradients(lambda x, w: ours("reference", x, w), x.double(), w.double(), g.double())
    y, dx, matrix_slope = with_gradients(plain, *(rounded(one, mode) for one in (x, dense(w, x), g)))
    exact_weight = w.double().requires_grad_()
    (dw,) = torch.autograd.grad(dense(exact_weight, x), exact_weight, matrix_slope.double())
    for what, a, b, c in zip(("result", "dx", "dw"), mine, (y, dx, dw), exact, strict=True):
        # Spectral matmuls round three times instead of twice, so the worst of few elements may have a larger error.
        assert_as_accurate(a, b.float(), c, worst=3.0, what=what)


def test_rows_far_below_the_amax_are_as_accurate(mode: str) -> None:
    x, w = torch.randn(17, 320), torch.randn(9, 10, 32)
    x[:12] *= 2.0 ** -torch.arange(0, 24, 2)[:, None]
    y = functional.linear(x, w, out_features=288, impl="kernel")
    matrix = reference.dense_matrix(w, 288, 320)
    exact, plain = x.double() @ matrix.double().T, rounded(x, mode) @ rounded(matrix, mode).T
    error, allowed = ((one.double() - exact).norm(dim=1) / exact.norm(dim=1) for one in (y, plain))
    rows = 8 if mode == "tf32" else 7  # 2**-14, a ten-thousandth; 2**-12
    assert (error[:rows] <= 2 * allowed[:rows]).all()
    floor = 2.0**-22 if mode == "tf32" else 2.0**-34
    assert (error * exact.norm(dim=1) <= floor * exact.norm() + 2 * allowed * exact.norm(dim=1)).all()


@pytest.mark.parametrize("mode", ["tf32"], indirect=True)
@pytest.mark.parametrize("k", [2, 3, 64])
def test_the_largest_possible_sums_do_not_overflow(k: int) -> None:
    x, w = torch.full((3, 5 * k), 1.99), torch.full((2, 5, k), 1.99)
    x[1] *= -1
    y = functional.linear(x, w, out_features=2 * k, impl="kernel")
    torch.testing.assert_close(y, x @ reference.dense_matrix(w, 2 * k, 5 * k).T, rtol=2e-3, atol=0)


@pytest.mark.parametrize("mode", ["tf32"], indirect=True)
@pytest.mark.parametrize("k", [2, 3, 7, 16, 64, 100, 256])
@pytest.mark.parametrize("eigenvalues", [False, True])
def test_growth_bounds_the_amax_of_a_spectrum(k: int, eigenvalues: bool) -> None:
    matrix = basis(k, eigenvalues=eigenvalues, dtype=torch.float64)
    assert matrix.abs().sum(1).max() <= 2 ** growth(k, eigenvalues) * (1 + 1e-12)


# From NumPy in the interpreter.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")
def test_nonfinite_values_affect_only_their_own_row() -> None:
    x, w = torch.randn(17, 320) * 1e-9, torch.randn(9, 10, 32)
    expected = functional.linear(x, w, out_features=288, impl="kernel")
    x[1:4, 5] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    y = functional.linear(x, w, out_features=288, impl="kernel")
    assert not y[1:4].isfinite().any()
    torch.testing.assert_close(y[4:], expected[4:], rtol=1e-3, atol=1e-12)
    w[:3, 0, 0] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    assert not functional.linear(x, w, out_features=288, impl="kernel")[:, :96].isfinite().any()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:All-NaN slice", "ignore:invalid value")  # from the interpreter
@pytest.mark.parametrize("unsampled", [None, "large", "zero", "not finite"])
def test_a_sampled_amax_is_retried_on_overflow(
    mode: str, unsampled: str | None, monkeypatch: pytest.MonkeyPatch, poisoned_empty: None
) -> None:
    w = torch.randn(9, 9, 32)
    x, gy = torch.randn(24, 288), torch.randn(24, 288)
    monkeypatch.setattr(split_fp16, "_BLOCK", 256)  # of 27 blocks, one in row 0 and one in row 14 are sampled
    for one in (x, gy):
        if unsampled == "large":
            one[20, 5] = 1e4
        elif unsampled is not None:
            one *= 1e-7  # underflows in float16 without a scale
            one[:20] = 0.0 if unsampled == "zero" else torch.nan

    def step() -> tuple[Tensor, ...]:
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = functional.linear(*leaves, out_features=288, impl="kernel")
        return y.detach(), *torch.autograd.grad(y, leaves, gy)

    right = step()
    monkeypatch.setattr(scaled_fp16, "MIN_SAMPLED_NUMEL", 0)
    for ours, theirs in zip(step(), right, strict=True):
        largest = theirs[theirs.isfinite()].abs().max() if theirs.isfinite().any() else 0.0
        tolerance = (1e-6 if mode == "fp32" else 1e-3) * float(largest)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance, equal_nan=True)


def test_zeros_and_inputs_with_gaps() -> None:
    w = torch.randn(9, 10, 32)
    assert not functional.linear(torch.zeros(17, 320), w, out_features=288, impl="kernel").any()
    x = torch.randn(17, 640)[:, ::2]
    whole = functional.linear(x.contiguous(), w, out_features=288, impl="kernel")
    assert torch.equal(functional.linear(x, w, out_features=288, impl="kernel"), whole)


@pytest.mark.parametrize("mode", ["tf32"], indirect=True)
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, True, True)])
def test_second_derivatives_equal_the_reference(wanted: tuple[bool, ...]) -> None:
    operands = [torch.randn(1, 12, 3, 3), torch.randn(4, 3, 2, 2, 4), torch.randn(14)]
    penalties = []
    for impl, dtype in (("kernel", torch.float32), ("reference", torch.float64)):
        leaves = [t.to(dtype, copy=True).requires_grad_(needed) for t, needed in zip(operands, wanted, strict=True)]
        y = functional.conv(*leaves, out_channels=14, **STEPS, impl=impl)
        of = [leaf for leaf in leaves if leaf.requires_grad]
        slopes = torch.autograd.grad(y.tanh().sum(), of, create_graph=True)
        penalties.append([*slopes, *torch.autograd.grad(sum(s.square().sum() for s in slopes), of)])
    for mine, theirs in zip(*penalties, strict=True):
        assert (mine - theirs).norm() <= 3e-3 * theirs.norm()


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_a_frozen_operand_needs_no_gradient_flops(wanted: tuple[bool, bool]) -> None:
    operands = [t.to(torch.get_default_device(), copy=True) for t in CASES["linear"][2:]]
    leaves = [t.requires_grad_(needed) for t, needed in zip(operands, wanted, strict=True)]
    with FlopCounterMode(display=False) as counter:
        y = linear("kernel", *leaves)
        forward = counter.get_total_flops()
        y.sum().backward()
    both = sum(2 * 32 * 32 * n for n in (17 * 10, 9 * 10, 17 * 9))
    products = 8 * 16 * 17 * 9 * 10
    spared = 2 * 32 * 32 * (9 * 10 if wanted[0] else 17 * 10)
    assert forward == both + products
    assert counter.get_total_flops() == 2 * forward - spared


@pytest.mark.parametrize("mode", ["tf32"], indirect=True)
def test_layers_compile_to_one_graph_and_follow_the_mode() -> None:
    conv = BlockCirculantConv2d(20, 18, 3, block_size=20, signs=True, impl="kernel")
    layers = BlockCirculantLinear(10, 7, 4, impl="kernel"), conv
    for layer, x in zip(layers, (torch.randn(3, 10), torch.randn(1, 20, 7, 6)), strict=True):
        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for precision in ("tf32", "fp32"):
            results = []
            with precision_mode(precision, autotune=False):
                for function in (layer, compiled):
                    leaf = x.clone().requires_grad_()
                    y = function(leaf)
                    results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])))
            for ours, theirs in zip(*results, strict=True):
                assert torch.equal(ours, theirs), precision
