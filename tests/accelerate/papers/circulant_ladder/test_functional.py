"""Layers by the dissertation's kernels: the CUDA source, run on the CPU, against the definition in float64."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from lamina.accelerate import convert
from lamina.accelerate.methods.circulant import Circulant
from lamina.accelerate.methods.circulant import functional as layers
from lamina.accelerate.methods.circulant.config import PUBLISHED, Impl
from lamina.accelerate.papers.circulant_ladder import functional, rungs
from lamina.accelerate.papers.circulant_ladder.mapping import Phase
from lamina.accelerate.papers.circulant_ladder.rungs import IMPLS, Pass
from lamina.errors import UnsupportedError
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate
from lamina.testing.cuda_on_cpu import KernelOnCpu

LIMIT = 64  # threads of a block: a thread of the CPU each


@pytest.fixture
def sources_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the CPU too, in small thread blocks."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    made = rungs.kernels(KernelOnCpu)
    monkeypatch.setattr(functional, "kernels_for", lambda x: made)
    small = lambda *args, **more: Pass(*args, **more, limit=LIMIT)  # noqa: E731
    monkeypatch.setattr(functional, "Pass", small)


def test_the_configuration_names_every_version() -> None:
    assert tuple(IMPLS) == PUBLISHED
    assert {rung.name for rung in IMPLS.values()} == {rung.name for rung in rungs.RUNGS}


@pytest.mark.parametrize("impl", PUBLISHED)
def test_the_sources_compute_a_convolution_and_its_gradients(impl: Impl, sources_run: None) -> None:
    def run(impl: Impl, dtype: torch.dtype) -> list[Tensor]:
        leaves = [one.to(dtype).requires_grad_() for one in (x, w, b)]
        y = layers.conv(*leaves, out_channels=6, padding=1, stride=2, impl=impl)
        return [y, *torch.autograd.grad(y, leaves, dy.to(dtype))]

    torch.manual_seed(0)
    x, w, b, dy = (torch.randn(*size) for size in ((2, 7, 4, 5), (2, 3, 3, 2, 4), (6,), (2, 6, 2, 3)))
    with precision_mode("fp32", autotune=False):
        every = zip(run(impl, torch.float32), run("dense", torch.float32), run("dense", torch.float64), strict=True)
    for what, three in zip(("y", "dx", "dw", "db"), every, strict=True):
        assert_as_accurate(*three, what=f"{impl} {what}")


@pytest.mark.parametrize("impl", ["as_written", "o1", "fusion"])
def test_gradients_that_are_not_needed_are_not_computed(impl: Impl, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = Pass.run

    def watched(one: Pass, phase: Phase) -> Tensor:
        ran.append(phase)
        return run(one, phase)

    monkeypatch.setattr(Pass, "run", watched)
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(2, 2, 4, requires_grad=True)
    layers.linear(x.detach(), w, out_features=8, impl=impl).sum().backward()
    assert ran == ["forward", "backward_weight"]
    y = layers.linear(x, w, out_features=8, impl=impl).sum()
    for wanted in ((x,), (w,), (x, w)):  # as benches of single phases
        ran.clear()
        found = torch.autograd.grad(y, wanted, retain_graph=True)
        phases = [{id(x): "backward_data", id(w): "backward_weight"}[id(one)] for one in wanted]
        assert sorted(ran) == phases
        for gradient, one in zip(found, wanted, strict=True):
            plain = torch.autograd.grad(layers.linear(x, w, out_features=8, impl="reference").sum(), one)[0]
            torch.testing.assert_close(gradient, plain)


def test_more_rows_than_a_grid_has_blocks_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, dy = (torch.randn(*size) for size in ((7, 8), (2, 2, 4), (7, 7)))
    found = []
    for rows in (7, 3):
        monkeypatch.setattr(functional, "ROWS", rows)
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        y = layers.linear(*leaves, out_features=7, impl="as_written")
        found.append((y, *torch.autograd.grad(y, leaves, dy)))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole)


def test_both_gradients_share_the_spectrum_of_the_output_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(2, 2, 4, requires_grad=True)
    y = layers.linear(x, w, out_features=8, impl="fusion")
    transformed: list[Tensor] = []
    rfft = torch.fft.rfft
    monkeypatch.setattr(torch.fft, "rfft", lambda blocks: transformed.append(blocks) or rfft(blocks))  # type: ignore[func-returns-value]
    for dy in (torch.randn(3, 8), torch.randn(3, 8)):  # a second pass has another gradient
        transformed.clear()
        found = torch.autograd.grad(y, (x, w), dy, retain_graph=True)
        assert len(transformed) == 1
        plain = torch.autograd.grad(layers.linear(x, w, out_features=8, impl="reference"), (x, w), dy)
        for one, other in zip(found, plain, strict=True):
            torch.testing.assert_close(one, other)


def test_transforms_of_functions_are_refused() -> None:
    w = torch.randn(2, 2, 4)
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.vmap(lambda x: layers.linear(x, w, out_features=8, impl="o1"))(torch.randn(2, 3, 8))


def test_no_rows_give_no_outputs_and_gradients_of_zero() -> None:
    x, w = torch.zeros(0, 8, requires_grad=True), torch.randn(2, 2, 4, requires_grad=True)
    y = layers.linear(x, w, out_features=7, impl="fusion")
    assert y.shape == (0, 7)
    y.sum().backward()
    assert w.grad is not None and not w.grad.any()


def test_a_converted_network_trains_and_reports_the_version() -> None:
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8))
    model, record = convert(network, Circulant(block_size=4, impl="sum_first"))
    assert len(record.replaced) == 2
    model(torch.randn(2, 8, 4, 4)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    executed = model[0].executed("step")  # type: ignore[operator]
    assert executed == ("circulant[block_size=4,impl=sum_first]", "requested, in PyTorch operations on cpu")
