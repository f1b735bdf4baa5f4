"""Sums over rows against float64, and where PyTorch's reduction stays."""

import pytest
import torch
from torch import Tensor

from lamina.accelerate.common.channel_sums import ops
from lamina.accelerate.common.channel_sums.kernels import channel_sums_cost
from lamina.errors import UnsupportedError
from lamina.testing.tolerance import assert_as_accurate

pytestmark = pytest.mark.usefixtures("where_kernels_run")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MIN_NUMEL", 1)
    monkeypatch.setattr(ops, "PROGRAMS", 6)


def rows(*shape: int, last: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random rows ``(N, C, L)``, with contiguous channels if ``last``."""
    torch.manual_seed(0)
    n, c, length = shape
    x = torch.randn(n, length, c).mT if last else torch.randn(shape)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (300, 33, 1), (3, 129, 7), (1, 5, 400), (2, 256, 33)])
def test_sums_are_as_accurate_as_pytorchs(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = rows(*shape, dtype=dtype)
    with torch.no_grad():
        ours = ops.run_channel_sums(x, dtype)
    assert ours.dtype == dtype and ours.shape == (shape[1],)
    assert_as_accurate(ours, x.sum((0, 2)), x.double().sum((0, 2)))
    if dtype != torch.float32:  # the gradient of a float32 bias
        assert_as_accurate(ops.run_channel_sums(x, torch.float32), x.float().sum((0, 2)), x.double().sum((0, 2)))


def test_rows_may_have_gaps_and_partial_sums_need_no_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.randn(200, 48)
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda self, *size, **options: new_empty(self, *size, **options).fill_(
        float("nan")
    ))  # fmt: skip
    x = wide[:, 3:36, None]
    torch.testing.assert_close(ops.run_channel_sums(x, torch.float32), x.sum((0, 2)))
    assert torch.equal(ops.run_channel_sums(x, torch.float32), ops.run_channel_sums(x, torch.float32))


@pytest.mark.parametrize("what", ["few", "nchw", "gaps", "grad", "float64", "vmap"])
def test_pytorchs_reduction_stays(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*args: object) -> None:
        raise AssertionError("the kernel ran")

    monkeypatch.setattr(ops, "run_channel_sums", no_kernel)
    x = rows(4, 6, 5, last=what != "nchw", dtype=torch.float64 if what == "float64" else torch.float32)
    if what == "few":
        monkeypatch.setattr(ops, "MIN_NUMEL", 4 * 121)
    if what == "gaps":
        x = rows(4, 6, 6)[:, :, :5]
    if what == "vmap":
        found = torch.func.vmap(lambda one: ops.channel_sums(one, one.dtype))(x[None])[0]
    else:
        with torch.set_grad_enabled(what == "grad"):
            found = ops.channel_sums(x, x.dtype)
    torch.testing.assert_close(found, x.sum((0, 2)))


def test_the_kernel_sums_contiguous_channels() -> None:
    x = rows(4, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(ops.channel_sums(x, torch.float32), x.sum((0, 2)))
        assert ops.channel_sums(rows(0, 6, 1), torch.float32).tolist() == [0] * 6


@pytest.mark.parametrize(("length", "launches"), [(ops.FEW_ROWS, 1), (ops.FEW_ROWS + 1, 2)])
def test_few_rows_are_added_in_one_launch(length: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, launch = [], ops.launch
    monkeypatch.setattr(ops, "launch", lambda *args, **options: (seen.append(args), launch(*args, **options)))
    x = rows(1, 21, length)
    with torch.no_grad():
        torch.testing.assert_close(ops.channel_sums(x, torch.float32), x.sum((0, 2)))
    assert len(seen) == launches


def test_sums_in_a_narrower_dtype_are_rounded_once() -> None:
    x = torch.full((300, 3, 1), 1 / 3)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "MIN_NUMEL", 10**9)
        torch.testing.assert_close(ops.channel_sums(x, torch.bfloat16), x.sum((0, 2)).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("x", [rows(4, 6, 5, last=False), rows(4, 6, 6)[:, :, :5]])
def test_the_kernel_refuses_rows_without_one_stride(x: Tensor) -> None:
    with pytest.raises(UnsupportedError, match="contiguous channels"):
        ops.run_channel_sums(x, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300, 33), (3, 7, 129), (2, 33, 4, 5), (1, 5, 20, 20)])
def test_gradients_behind_relu_are_pytorchs(shape: tuple[int, ...], dtype: torch.dtype, poisoned_empty: None) -> None:
    images = len(shape) == 4
    layout = torch.channels_last if images else torch.contiguous_format
    dy, y = (torch.randn(shape).to(dtype).contiguous(memory_format=layout) for _ in range(2))
    y = y.relu()
    y[(0,) * y.dim()] = float("nan")
    expected = torch.ops.aten.threshold_backward(dy, y, 0)
    summed = (0, 2, 3) if images else tuple(range(len(shape) - 1))
    for _ in range(3):  # as it is, recorded, and replayed
        with torch.no_grad():
            masked, sums = ops.relu_gradients(dy, y, not images, torch.float32)
        assert masked.stride() == dy.stride() and torch.equal(masked, expected)
        assert sums is not None
        assert_as_accurate(sums, expected.float().sum(summed), expected.double().sum(summed))


@pytest.mark.parametrize("what", ["no bias", "nchw", "expanded", "transposed", "grad", "float64"])
def test_pytorchs_operators_compute_other_gradients_behind_relu(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*args: object) -> None:
        raise AssertionError("the kernel ran")

    monkeypatch.setattr(ops, "run_relu_sums", no_kernel)
    dy, y = torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 5).relu()
    last = what == "transposed"
    if what == "expanded":
        dy = torch.randn(1).expand(2, 4, 3, 5)
    if what not in ("nchw", "expanded", "transposed"):
        dy, y = (one.contiguous(memory_format=torch.channels_last) for one in (dy, y))
    if last:
        dy = torch.randn(5, 3, 4, 2).permute(3, 2, 1, 0)
    if what == "float64":
        dy, y = dy.double(), y.double()
    expected = torch.ops.aten.threshold_backward(dy, y, 0)
    with torch.set_grad_enabled(what == "grad"):
        masked, sums = ops.relu_gradients(dy, y, last, None if what == "no bias" else dy.dtype)
        assert torch.equal(masked, expected) and sums is None
        sums = ops.bias_gradient(masked, last, dy.dtype)
    torch.testing.assert_close(sums, expected.sum((0, 1, 2) if last else (0, 2, 3)))


def test_without_relu_gradients_stay() -> None:
    dy = torch.randn(300, 33)
    with torch.no_grad():
        assert ops.relu_gradients(dy, None, True, torch.float32) == (dy, None)
        torch.testing.assert_close(ops.bias_gradient(dy, True, torch.float32), dy.sum(0))


def test_its_cost_is_one_read() -> None:
    cost = channel_sums_cost(10, 4, 2)
    assert cost.bytes_read == 80 and cost.flops == 40
    behind = channel_sums_cost(10, 4, 2, relu=True)
    assert (behind.flops, behind.bytes_read, behind.bytes_written) == (80, 160, 88)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 192, 729), (128, 384, 169), (2048, 4096, 1), (6304, 768, 1), (50, 1000, 1)])
def test_sums_of_layers(shape: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "PROGRAMS", 528)
    x = rows(*shape, dtype=dtype).cuda()
    with torch.no_grad():
        ours = ops.channel_sums(x, torch.float32)
    assert_as_accurate(ours, x.float().sum((0, 2)), x.double().sum((0, 2)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 192, 27, 27), (2048, 4096), (3, 700, 1000), (64, 64, 112, 112)])
def test_gradients_of_layers_behind_relu(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "PROGRAMS", 528)
    images = len(shape) == 4
    layout = torch.channels_last if images else torch.contiguous_format
    dy, y = (torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=layout) for _ in range(2))
    expected = torch.ops.aten.threshold_backward(dy, y.relu_(), 0)
    summed = (0, 2, 3) if images else tuple(range(len(shape) - 1))
    with torch.no_grad():
        masked, sums = ops.relu_gradients(dy, y, not images, torch.float32)
    assert torch.equal(masked, expected) and sums is not None
    assert_as_accurate(sums, expected.float().sum(summed), expected.double().sum(summed))
