"""Compiled kernels on their target shapes, in every precision: accuracy, determinism, graphs, no synchronization."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.accelerate.methods.circulant import functional, reference, scaled_fp16
from lamina.accelerate.methods.circulant.config import Impl
from lamina.accelerate.methods.circulant.nn import BlockCirculantLinear, BlockCirculantLSTM
from lamina.accelerate.runtime import launch_cache
from lamina.errors import UsageError
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ...precisions import TYPES, on_tensor_cores
from ...waiting import no_waiting

pytestmark = pytest.mark.gpu

LAYERS = {  # block size, inputs, outputs, batch, image, kernel
    "wide": (64, 4096, 1024, 128, 0, 0),
    "odd": (48, 1000, 300, 33, 0, 0),
    "one row": (64, 4096, 1000, 1, 0, 0),
    "few rows": (64, 4096, 1000, 64, 0, 0),
    "narrow rows": (64, 64, 70, 200, 0, 0),
    "blocks of 2": (2, 90, 50, 17, 0, 0),
    "blocks of 256": (256, 1000, 600, 33, 0, 0),
    "images of large blocks": (128, 256, 300, 4, 9, 3),
    "images": (64, 256, 512, 16, 14, 3),
    "small blocks": (16, 96, 160, 8, 27, 5),
    "large images": (64, 128, 128, 6, 112, 3),
    "large images of one block": (64, 64, 128, 11, 112, 3),
}


def parts(
    name: str, dtype: torch.dtype, channels_last: bool = True
) -> tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]:
    """The layer, the dense one by its matrix, and input, weight and upstream gradient."""
    k, inputs, outputs, batch, size, kernel = LAYERS[name]
    p, q = -(-outputs // k), -(-inputs // k)
    if not kernel:
        x, w = torch.randn(batch, inputs, device="cuda"), torch.randn(p, q, k, device="cuda") / inputs**0.5
        g = torch.randn(batch, outputs, device="cuda")
        linear = partial(functional.linear, out_features=outputs, impl="kernel")
        return linear, F.linear, [t.to(dtype) for t in (x, w, g)]
    w = torch.randn(p, kernel, kernel, q, k, device="cuda") / (inputs * kernel**2) ** 0.5
    form = torch.channels_last if channels_last else torch.contiguous_format
    x, g = (torch.randn(batch, c, size, size, device="cuda").to(memory_format=form) for c in (inputs, outputs))
    conv = partial(functional.conv, out_channels=outputs, padding=kernel // 2, impl="kernel")
    return conv, partial(F.conv2d, padding=kernel // 2), [t.to(dtype) for t in (x, w, g)]


def step(function: Callable[..., Tensor], x: Tensor, w: Tensor, g: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def as_held(product: Callable[..., Tensor], precision: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    """What results in a precision are held to, and what in float64."""
    return on_tensor_cores(product) if (precision, dtype) == ("tf32", torch.float32) else product


def test_a_first_call_in_a_capture_is_refused_and_leaves_the_layer_usable() -> None:
    x, w = torch.randn(4, 90, device="cuda"), torch.randn(2, 3, 30, device="cuda")  # blocks that no other test has
    refused, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with pytest.raises(UsageError, match="expected a first call of the layer before"), torch.cuda.graph(refused):
        functional.linear(x + 1, w, out_features=60, impl="kernel")  # torch would warn of a graph of nothing
    y = functional.linear(x, w, out_features=60, impl="kernel")
    with torch.cuda.graph(graph):
        recurrent = functional.linear(x, w, out_features=60, impl="kernel")
    graph.replay()
    assert torch.equal(recurrent, y)
    assert_as_accurate(y, reference.linear(x, w, None, 60), reference.linear(x.double(), w.double(), None, 60))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_training_step_is_as_accurate_as_the_dense_layer(precision: str, name: str, channels_last: bool) -> None:
    ours, dense, (x, w, g) = parts(name, TYPES[precision], channels_last)
    _, inputs, outputs, *_ = LAYERS[name]
    results = {}
    for dtype in (TYPES[precision], torch.float64):
        wide = w.to(dtype).requires_grad_()
        matrix = reference.dense_matrix(wide, outputs, inputs)
        y, dx, slope = step(as_held(dense, precision, dtype), x.to(dtype), matrix, g.to(dtype))
        results[dtype] = y, dx, *torch.autograd.grad(matrix, wide, slope)
    plain, exact = results.values()
    for what, a, b, c in zip(("result", "dx", "dw"), step(ours, x, w, g), plain, exact, strict=True):
        assert_as_accurate(a, b, c, what=f"{name} {what}")


@pytest.mark.parametrize("name", LAYERS)
def test_relu_in_the_last_kernel_is_that_of_the_output(precision: str, name: str) -> None:
    ours, _, (x, w, g) = parts(name, TYPES[precision])
    bias = torch.randn(LAYERS[name][2], device="cuda").to(TYPES[precision])
    leaves = [one.detach().requires_grad_() for one in (x, w, bias)]
    y = ours(*leaves).relu()
    expected = [y.detach(), *torch.autograd.grad(y, leaves, g)]
    for _ in range(3):  # as it is, recorded, and replayed
        fused = ours(*leaves, relu=True)
        found = [fused.detach(), *torch.autograd.grad(fused, leaves, g)]
        assert all(map(torch.equal, found[:3], expected[:3]))
        torch.testing.assert_close(found[3], expected[3])


@pytest.mark.parametrize("name", LAYERS)
def test_steps_do_not_synchronize_and_are_deterministic_in_a_graph(precision: str, name: str) -> None:
    ours, _, operands = parts(name, TYPES[precision])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first = step(ours, *operands)
        with no_waiting():
            second = step(ours, *operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            third = step(ours, *operands)
        operands[0].mul_(8)  # another scale
        graph.replay()
        fourth = step(ours, *operands)
    torch.cuda.synchronize()
    for a, b, c, d in zip(first, second, third, fourth, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(c, d)


RECURRENT = [(96, 33, 5, 64), (1024, 64, 6, 64), (300, 1, 3, 128)]  # cells, batch, steps, block size


def recurrent_step(
    layer: Callable[..., Any], weights: list[Tensor], x: Tensor, h: Tensor, c: Tensor, *slopes: Tensor
) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in (x, h, c)]
    y, (h, c) = layer(leaves[0], (leaves[1], leaves[2]))
    made = [y, h, c]
    return [*(each.detach() for each in made), *torch.autograd.grad(made, [*leaves, *weights], slopes)]


def recurrent_parts(
    cells: int, batch: int, steps: int, block_size: int, dtype: torch.dtype
) -> tuple[BlockCirculantLSTM, list[Tensor]]:
    layer = BlockCirculantLSTM(cells, cells, block_size=block_size, impl="kernel", device="cuda", dtype=dtype)
    sizes = ((steps, batch, cells), *((1, batch, cells),) * 2) * 2  # inputs and output gradients
    return layer, [torch.randn(size, device="cuda").to(dtype) for size in sizes]


def plain_lstm(
    linear: Callable[[Tensor, Tensor], Tensor], weights: list[Tensor], x: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    cells, hidden = x.shape[-1], []
    weight_ih, weight_hh = (reference.dense_matrix(weight, 4 * cells, 4 * cells, 4) for weight in weights[:2])
    h, c = state[0][0], state[1][0]
    for inputs in linear(x, weight_ih) + (weights[2] + weights[3]):
        h, c = reference.lstm_cell((inputs + linear(h, weight_hh)).unflatten(1, (4, cells)), c)
        hidden.append(h)
    return torch.stack(hidden), (h[None], c[None])


@pytest.mark.parametrize("sizes", RECURRENT)
def test_a_recurrence_is_as_accurate_as_a_loop_over_dense_matrices(
    precision: str, sizes: tuple[int, int, int, int]
) -> None:
    layer, operands = recurrent_parts(*sizes, TYPES[precision])
    ours = recurrent_step(layer, list(layer.parameters()), *operands)
    results = []
    for dtype in (TYPES[precision], torch.float64):
        weights = [weight.detach().to(dtype).requires_grad_() for weight in layer.parameters()]
        plain = partial(plain_lstm, as_held(F.linear, precision, dtype), weights)
        results.append(recurrent_step(plain, weights, *(each.to(dtype) for each in operands)))
    what = ("y", "h", "c", "dx", "dh", "dc", *(f"d{name}" for name, _ in layer.named_parameters()))
    for name, a, b, c in zip(what, ours, *results, strict=True):
        assert_as_accurate(a, b, c, what=name)


def test_a_recurrence_does_not_synchronize_and_is_deterministic_in_a_graph(precision: str) -> None:
    layer, operands = recurrent_parts(256, 16, 4, 64, TYPES[precision])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first = recurrent_step(layer, list(layer.parameters()), *operands)
        with no_waiting():
            second = recurrent_step(layer, list(layer.parameters()), *operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            third = recurrent_step(layer, list(layer.parameters()), *operands)
        operands[0].mul_(2)
        graph.replay()
        fourth = recurrent_step(layer, list(layer.parameters()), *operands)
    torch.cuda.synchronize()
    for a, b, c, d in zip(first, second, third, fourth, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(c, d)


@pytest.mark.parametrize("mode", ["fp32", "tf32"])
@pytest.mark.parametrize("unsampled", ["large", "zero"])
def test_a_sampled_amax_is_retried_in_a_captured_graph(
    mode: str, unsampled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _, operands = parts("large images", torch.float32)
    x, _, g = operands
    assert min(x.numel(), g.numel()) >= scaled_fp16.MIN_SAMPLED_NUMEL
    with precision_mode(mode, autotune=False):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(ours, *operands)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = step(ours, *operands)
            for one in (x, g):
                if unsampled == "zero":
                    one[:-1] = 0
                    one[-1, :, :-1] = 0
                    one *= 1e-7  # underflows in float16 without a scale
                else:
                    one[0, 5, 40, 40] = 1e5  # in a block that is not sampled
            graph.replay()
            monkeypatch.setattr(scaled_fp16, "MIN_SAMPLED_NUMEL", x.numel() + g.numel())
            launch_cache.clear()
            right = step(ours, *operands)
        torch.cuda.synchronize()
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=(1e-6 if mode == "fp32" else 1e-3) * b.abs().max().item())


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # that which the compiler reserves its memory pool by
def test_the_first_call_may_be_that_of_a_graph_of_the_compiler() -> None:
    """The graphs' memory pool takes back what the call allocates there, so the basis must not be in it."""
    layer = BlockCirculantLinear(440, 360, 40, impl="kernel").cuda()  # a block size that nothing else here uses
    compiled = torch.compile(layer, mode="reduce-overhead")
    x = torch.randn(64, 440, device="cuda")
    for _ in range(4):
        layer.zero_grad(set_to_none=True)
        compiled(x).square().sum().backward()
        torch.empty(2**20, device="cuda").fill_(float("nan"))
    ours = [one.grad.clone() for one in layer.parameters() if one.grad is not None]
    layer.zero_grad(set_to_none=True)
    layer(x).square().sum().backward()
    for mine, one in zip(ours, layer.parameters(), strict=True):
        torch.testing.assert_close(mine, one.grad)


FIRST_IN_ITS_THREAD = """
import torch
from lamina.accelerate.methods.circulant import functional
x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
w = (torch.randn(8, 4, 64, device="cuda") / 16).bfloat16().requires_grad_()
dy = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16)
for _ in range(4):
    y = functional.linear(x, w, None, out_features=512, impl="IMPL")
    torch.autograd.grad(y, (x, w), dy)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("impl", ["kernel", "fused_rows"])
def test_the_first_work_of_autograds_thread_may_be_ours(impl: str) -> None:
    """A process of its own: the thread has no CUDA context until then."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_IN_ITS_THREAD.replace("IMPL", impl)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("impl", ["kernel", "fused_rows"])
def test_new_threads_may_call_a_layer(impl: Impl) -> None:
    layer = BlockCirculantLinear(256, 512, 64, impl=impl).cuda().bfloat16()
    x = torch.randn(1024, 256, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = [layer(x) for _ in range(4)][-1]
        for _ in range(2):
            with ThreadPoolExecutor(1, initializer=torch.set_grad_enabled, initargs=(False,)) as thread:
                assert torch.equal(thread.submit(layer, x).result(), expected)
