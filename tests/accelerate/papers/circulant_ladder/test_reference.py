"""The versions in PyTorch operations, against the definition in float64."""

import pytest
import torch

from lamina.accelerate.methods.circulant import reference as definition
from lamina.accelerate.papers.circulant_ladder import reference, rungs


@pytest.mark.parametrize("rung", rungs.RUNGS, ids=lambda rung: rung.name)
@pytest.mark.parametrize("sizes", [(3, 2, 5, 4), (1, 3, 1, 7), (2, 1, 3, 2)], ids=str)
def test_every_phase_is_the_definition(rung: rungs.Rung, sizes: tuple[int, ...]) -> None:
    n, p, q, k = sizes
    x, w, dy = (torch.randn(*shape, k, dtype=torch.float64) for shape in ((n, q), (p, q), (n, p)))
    ours = rungs.step(rung, None, x, w, dy)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = definition.linear(x.flatten(1), w, None, p * k)
    expected = (y.view_as(dy), *torch.autograd.grad(y, [x, w], dy.flatten(1)))
    for phase, exact in zip(rungs.PHASES, expected, strict=True):
        torch.testing.assert_close(ours[phase], exact, msg=phase)


def test_reordering_transposes_a_circulant_block() -> None:
    w = torch.randn(1, 1, 5)
    turned = definition.dense_matrix(reference.reorder(w), 5, 5)
    assert torch.equal(turned, definition.dense_matrix(w, 5, 5).T)


def test_a_copy_is_made_only_where_the_layout_differs() -> None:
    tensor = torch.randn(2, 3, 4)
    assert reference.arranged(tensor, ("n", "q", "f"), ("n", "q", "f")).data_ptr() == tensor.data_ptr()
    assert torch.equal(reference.arranged(tensor, ("n", "q", "f"), ("q", "n", "f")), tensor.transpose(0, 1))
