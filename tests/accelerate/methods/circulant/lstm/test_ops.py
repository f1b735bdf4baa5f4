"""The recurrence operator against single steps of operators that have their own tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from lamina.accelerate.methods.circulant.basis import slot_count
from lamina.accelerate.methods.circulant.lstm import ops
from lamina.run import precision_mode
from lamina.testing import assert_as_accurate

from ....precisions import TYPES

pytestmark = pytest.mark.usefixtures("where_kernels_run")

SIZES = {  # steps, rows, width, block size
    "whole blocks": (3, 2, 8, 4),
    "ragged": (2, 3, 7, 3),
    "odd blocks": (2, 1, 5, 5),
    "one block": (2, 3, 2, 2),
    "one cell": (2, 1, 1, 2),
    "one step": (1, 2, 6, 4),
    "slices of a block": (1, 1, 66, 66),
    "several tiles": (2, 3, 40, 16),
}
NAMES = ("hidden", "last", "dinputs", "dws", "dh", "dc")


def operands(name: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    steps, rows, width, k = SIZES[name]
    q = -(-width // k)
    sizes = (steps, rows, 4 * q * k), (slot_count(k), 4 * q, 2, q), (rows, width), (rows, width)
    return [torch.randn(size).to(dtype).requires_grad_() for size in sizes]


def with_gradients(function: Callable[..., Any], name: str, leaves: list[Tensor]) -> list[Tensor]:
    """The first two outputs, and their gradients along fixed directions."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    outputs = function(*leaves, SIZES[name][3])[:2]
    directions = [torch.linspace(-5, 5, y.numel()).cos().view(y.shape).to(y.dtype) for y in outputs]
    return [*(y.detach() for y in outputs), *torch.autograd.grad(outputs, leaves, directions)]


@pytest.mark.parametrize("name", SIZES)
def test_outputs_and_gradients_equal_those_of_single_steps(name: str, poisoned_empty: None) -> None:
    leaves = operands(name)
    results = (with_gradients(each, name, leaves) for each in (ops.recurrence, ops.recurrence_by_steps))
    for what, ours, theirs in zip(NAMES, *results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, msg=what)


@pytest.mark.parametrize("precision", TYPES)
def test_outputs_and_gradients_are_as_accurate_as_those_of_single_steps(precision: str, poisoned_empty: None) -> None:
    name, leaves = "several tiles", operands("several tiles", TYPES[precision])
    with precision_mode(precision, autotune=False):
        ours, plain = (with_gradients(each, name, leaves) for each in (ops.recurrence, ops.recurrence_by_steps))
    exact = with_gradients(ops.recurrence_by_steps, name, [leaf.double() for leaf in leaves])
    for what, a, b, c in zip(NAMES, ours, plain, exact, strict=True):
        assert_as_accurate(a, b, c, what=what)


def test_operands_with_gaps_and_gradients_without_one() -> None:
    leaves = operands("ragged")
    gaps = (torch.stack([leaf.detach(), torch.full_like(leaf, torch.nan)], -1) for leaf in leaves)
    strided = [pairs[..., 0].requires_grad_() for pairs in gaps]
    assert not any(leaf.is_contiguous() for leaf in strided)
    results = []
    for each in (leaves, strided):
        hidden, last, *_ = ops.recurrence(*each, SIZES["ragged"][3])
        results.append((hidden, *torch.autograd.grad(hidden[-1, :, ::2].sum(), each, retain_graph=True)))
        results[-1] += torch.autograd.grad(last.sum(), each)  # type: ignore[assignment]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_gradients_of_the_first_and_second_order(poisoned_empty: None) -> None:
    def recurrence(*leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(ops.recurrence(*leaves, SIZES["one cell"][3])[:2])

    assert gradcheck(recurrence, operands("one cell"), fast_mode=True)
    assert gradgradcheck(recurrence, operands("one cell"), fast_mode=True)


def test_operators_pass_opcheck() -> None:
    leaves = operands("ragged")
    torch.library.opcheck(ops.recurrence, (*leaves, 3))
    _, _, *saved = ops.recurrence(*leaves, 3)
    upstream = torch.randn(2, 3, 7, dtype=torch.float64)
    torch.library.opcheck(ops.recurrence_backward, (upstream, None, leaves[1].detach(), *saved, 3))


def test_nonfinite_values_affect_only_their_own_row() -> None:
    inputs, ws, h, c = (leaf.detach() for leaf in operands("whole blocks", torch.float32))
    expected, *_ = ops.recurrence(inputs, ws, h, c, 4)
    inputs[1, 0, 3] = torch.nan
    hidden, last, *_ = ops.recurrence(inputs, ws, h, c, 4)
    assert torch.equal(hidden[0], expected[0]) and torch.equal(hidden[:, 1], expected[:, 1])
    assert hidden[1, 0, 3].isnan() and hidden[2, 0].isnan().all() and last[0].isnan().any()


def test_flops_equal_those_of_single_steps() -> None:
    leaves, k = operands("whole blocks"), SIZES["whole blocks"][3]
    counts = []
    for each in (ops.recurrence, ops.recurrence_by_steps):
        with FlopCounterMode(display=False) as counter:
            outputs = each(*leaves, k)[:2]
            forward = counter.get_total_flops()
            torch.autograd.grad([y.sum() for y in outputs], leaves)
        counts.append((forward, counter.get_total_flops()))
    assert counts[0] == counts[1]
