"""The operators are differentiable to any order, write all of their outputs, and have FLOP formulas."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from lamina.accelerate.common.geometry import Conv2dProblem
from lamina.accelerate.methods.circulant import functional, ops, reference
from lamina.accelerate.methods.circulant.materialized import ops as materialized
from lamina.accelerate.methods.circulant.spectral import ops as transform
from lamina.accelerate.methods.circulant.tiles import split_k_for

pytestmark = pytest.mark.usefixtures("where_kernels_run")

WINDOW = Conv2dProblem(1, 2, 3, 2, 1, 1, 2, 1, 0, 1, 1, 2)
FP64 = torch.float64
SHAPES = {"x": (2, WINDOW.rows_in, 2, 2), "w": (2, 2 * WINDOW.taps, 2, 1), "y": (2, WINDOW.rows_out, 2, 2)}


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=FP64, requires_grad=True)


def reference_spectral_matmul(xs: Tensor, ws: Tensor, window: Conv2dProblem = WINDOW) -> Tensor:
    """`ops.spectral_matmul` by one grouped convolution of real numbers."""
    slots, groups, kernel = xs.shape[0], window.groups, (window.kernel_height, window.kernel_width)
    images = xs.view(slots, window.batch, window.height, window.width, 2, groups, -1).permute(1, 0, 5, 4, 6, 2, 3)
    weights = ws.view(slots, groups, -1, *kernel, 2, ws.shape[-1]).permute(1, 3, 4, 0, 5, 2, 6)
    matrices = reference.embedding(weights).permute(3, 0, 4, 5, 1, 2)
    y = F.conv2d(
        images.flatten(1, 4), matrices.flatten(0, 2), None,
        (window.stride_height, window.stride_width), (window.padding_height, window.padding_width),
        (window.dilation_height, window.dilation_width), groups=slots * groups,
    )  # fmt: skip
    y = y.unflatten(1, (slots, groups, 2, -1)).permute(1, 0, 5, 6, 3, 2, 4)
    return y.flatten(1, 3).flatten(-2)


def reference_gradients(dys: Tensor, xs: Tensor, ws: Tensor) -> tuple[Tensor, ...]:
    """Both gradients of `reference_spectral_matmul`, differentiable again."""
    with torch.enable_grad():
        xs = xs if xs.requires_grad else xs.requires_grad_()
        ws = ws if ws.requires_grad else ws.requires_grad_()
        return torch.autograd.grad(reference_spectral_matmul(xs, ws), [xs, ws], dys, create_graph=True)


def zeros(operand: str) -> Tensor:
    return torch.zeros(SHAPES[operand], dtype=FP64)


MATMULS: dict[str, tuple[Callable[..., object], Callable[..., object], str]] = {
    "forward": (ops.spectral_matmul, reference_spectral_matmul, "xw"),
    "backward_data": (ops.spectral_matmul_backward_data, lambda y, w: reference_gradients(y, zeros("x"), w)[0], "yw"),
    "backward_weight": (ops.spectral_matmul_backward_weight,
                        lambda y, x: reference_gradients(y, x, zeros("w"))[1], "yx"),
    "backward": (ops.spectral_matmul_backward, reference_gradients, "yxw"),
}  # fmt: skip


def derivatives(function: Callable[..., object], inputs: list[Tensor]) -> list[Tensor]:
    """Results, their gradients along fixed directions, and the gradients of those."""

    def directions(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.linspace(-5, 5, t.numel(), dtype=FP64).cos().view(t.shape) for t in tensors]

    results = function(*inputs)
    results = [results] if isinstance(results, Tensor) else list(results)  # type: ignore[call-overload]
    upstream = [d.requires_grad_() for d in directions(results)]
    first = torch.autograd.grad(results, inputs, upstream, create_graph=True)
    second = torch.autograd.grad(first, [*inputs, *upstream], directions(list(first)), allow_unused=True)
    return [*results, *first, *(torch.zeros(()) if s is None else s for s in second)]


@pytest.mark.parametrize("name", MATMULS)
def test_spectral_matmuls_and_their_derivatives_equal_a_real_convolution(name: str, poisoned_empty: None) -> None:
    ours, expected, letters = MATMULS[name]
    inputs = [leaf(*SHAPES[letter]) for letter in letters]
    mine = derivatives(lambda *tensors: ours(*tensors, WINDOW.pack()), inputs)
    theirs = derivatives(expected, inputs)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b.expand_as(a), rtol=1e-11, atol=1e-11)


def differentiable() -> dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]]:
    s = torch.tensor([1.0, -1.0, -1.0])
    return {
        "transforms": (
            lambda x, b: transform.idft(transform.dft(x, s, 3, 1, False, FP64), s, b, 3, 1, False, 4, 2, False, FP64),
            (leaf(1, 4, 2), leaf(4)),
        ),
        "pair": (lambda x, w: transform.dft_pair(x, w, s, 3, 2, FP64), (leaf(1, 4, 2), leaf(2, 3, 1))),
        "inverse pair": (lambda a, b: transform.idft_pair(a, b, s, 3, 2, 4, 1, False, FP64, 1, FP64),
                         (leaf(2, 1, 2, 2), leaf(2, 2, 2, 1))),
        "materialized": (lambda x, w: materialized.linear(x, w, 4), (leaf(1, 3), leaf(2, 1, 3))),
        "materialized backward data": (
            lambda y, w: materialized.linear_backward_data(y, w, 3), (leaf(1, 4), leaf(2, 1, 3)),
        ),
        "materialized backward weight": (
            lambda y, x: materialized.linear_backward_weight(y, x, 3, FP64), (leaf(1, 4), leaf(1, 3)),
        ),
        "materialized backward": (materialized.linear_backward, (leaf(1, 4), leaf(1, 3), leaf(2, 1, 3))),
        "dense matrix": (lambda w: materialized.dense_matrix(w, None, 4, 3, 2, False), (leaf(2, 1, 2, 2),)),
        "dense matrix channels last": (
            lambda w: materialized.dense_matrix(w, s[:2], 4, 3, 2, True), (leaf(2, 2, 2, 2),),
        ),
        "diagonal sums": (lambda m: materialized.diagonal_sums(m, s[:2], 2, 2), (leaf(4, 3, 1),)),
    }  # fmt: skip


@pytest.mark.parametrize("name", differentiable())
def test_gradients_of_the_first_and_second_order(name: str, poisoned_empty: None) -> None:
    function, inputs = differentiable()[name]
    # One random direction instead of every coordinate: the interpreter takes milliseconds for each call.
    assert gradcheck(function, inputs, fast_mode=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_second_derivatives_equal_the_reference() -> None:
    x, w, b = leaf(2, 5), leaf(2, 2, 4), leaf(6)
    penalties = []
    for impl in ("kernel", "materialized", "reference"):
        y = functional.linear(x, w, b, out_features=6, impl=impl)
        (slope,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), [x, w, b]))
    for ours in penalties[:2]:
        for mine, theirs in zip(ours, penalties[2], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("frozen", ["x", "w"])
def test_only_operands_that_require_a_gradient_get_one(frozen: str) -> None:
    x, w = leaf(2, 5), leaf(1, 2, 4)
    (x if frozen == "x" else w).requires_grad_(False)
    trained = w if frozen == "x" else x
    grads = [
        torch.autograd.grad(functional.linear(x, w, out_features=3, impl=impl).square().sum(), trained)[0]
        for impl in ("kernel", "reference")
    ]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("sign_flips", [False, True])
def test_a_dense_matrix_equals_the_reference_in_both_memory_formats(
    channels_last: bool, sign_flips: bool, poisoned_empty: None
) -> None:
    w, signs = leaf(4, 2, 2, 3), torch.tensor([-1.0, 1.0, -1.0]) if sign_flips else None
    matrix, expected = (
        materialized.dense_matrix(w, signs, 10, 5, 2, channels_last),
        reference.dense_matrix(w, 10, 10, 2, signs),
    )
    assert (matrix.mT if channels_last else matrix).is_contiguous()
    assert torch.equal(matrix, expected)
    g = torch.randn_like(matrix)  # keeps the memory format
    sums, exact = (torch.autograd.grad(values, w, g)[0] for values in (matrix, expected))
    torch.testing.assert_close(sums, exact)


def test_weight_gradient_with_split_k(poisoned_empty: None) -> None:
    window = Conv2dProblem(600)
    assert split_k_for(1, 600, 32) > 1
    ys, xs = torch.randn(1, 600, 2, 1), torch.randn(1, 600, 2, 1)
    reduced = ops.spectral_matmul_backward_weight(ys, xs, window.pack())
    expected = (ys.double() * xs.double()).sum(1).view(1, 1, 2, 1)  # slot 0 is two real matmuls
    torch.testing.assert_close(reduced.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [1, 3, 20])
def test_the_weight_gradient_of_any_number_of_blocks_equals_the_reference(blocks: int, poisoned_empty: None) -> None:
    x, w = leaf(1, 2 * blocks, 2, 3), leaf(2, 2, 2, blocks, 2)
    ours, theirs = (
        torch.autograd.grad(functional.conv(x, w, out_channels=3, padding=1, impl=impl).square().sum(), w)[0]
        for impl in ("kernel", "reference")
    )
    torch.testing.assert_close(ours, theirs)


def test_an_empty_batch() -> None:
    x, w = torch.randn(0, 5, requires_grad=True), torch.randn(1, 2, 4, requires_grad=True)
    for impl in ("kernel", "materialized", "reference"):
        y = functional.linear(x, w, out_features=3, impl=impl)
        assert y.shape == (0, 3)
        assert not torch.autograd.grad(y.sum(), w)[0].any()


def test_autocast_transforms_float32_operands_into_bfloat16_spectra() -> None:
    x, w = torch.randn(2, 8, requires_grad=True), torch.randn(2, 2, 4, requires_grad=True)
    expected = x @ reference.dense_matrix(w, 8, 8).T
    for impl in ("kernel", "materialized", "dense", "reference"):
        with torch.autocast(x.device.type, torch.bfloat16):
            y = functional.linear(x, w, out_features=8, impl=impl)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
        grads = torch.autograd.grad(y.float().square().sum(), [x, w])
        assert [g.dtype for g in grads] == [torch.float32] * 2


def test_float64_is_exact_and_nan_stays_in_its_row() -> None:
    x = torch.randn(3, 8, dtype=FP64)
    w = torch.randn(2, 2, 4, dtype=FP64)
    x[1, 2] = float("nan")
    y = functional.linear(x, w, out_features=8, impl="kernel")
    assert y[1].isnan().all()
    expected = x[[0, 2]] @ reference.dense_matrix(w, 8, 8).T
    torch.testing.assert_close(y[[0, 2]], expected, rtol=1e-12, atol=1e-12)


def test_flops_are_counted() -> None:
    x, w = torch.randn(5, 12, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    counted = []
    for impl in ("kernel", "materialized"):
        with FlopCounterMode(display=False) as counter:
            functional.linear(x, w, out_features=8, impl=impl).sum().backward()
        counted.append(counter.get_total_flops())
    transforms = 2 * 4 * 4 * (5 * 3 + 2 * 3 + 5 * 2)  # inputs, weights, outputs; a block is 4 by 4
    products = 8 * 2 * 5 * 2 * 3
    assert counted == [2 * transforms + 3 * products, 3 * 2 * 5 * 12 * 8]


@pytest.mark.parametrize("pair", [False, True])
def test_fake_tensors_have_the_strides_of_outputs(pair: bool) -> None:
    spectrum, weight = torch.randn(2, 6, 2, 2), torch.randn(2, 4, 2, 1)
    call = (
        partial(transform.idft_pair, spectrum, weight, None, 4, 1, 7, 3, True, torch.float32, 2, torch.float32)
        if pair
        else partial(transform.idft, spectrum, None, None, 4, 1, False, 7, 3, True, torch.float32)
    )
    real = call() if pair else (call(),)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        fake = call() if pair else (call(),)
    assert [t.stride() for t in fake] == [t.stride() for t in real]
    assert [t.shape for t in fake] == [t.shape for t in real]
