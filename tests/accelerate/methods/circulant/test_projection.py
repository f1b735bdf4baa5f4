"""The projection against a mean over diagonals by plain loops, and against all other circulant matrices."""

import pytest
import torch

from lamina.accelerate.methods.circulant.projection import coverage, project
from lamina.accelerate.methods.circulant.reference import dense_matrix
from lamina.errors import UsageError

SIZES = [(2, 4, 6), (3, 7, 5), (4, 8, 12), (5, 9, 3)]


def mean_of_diagonals(dense: torch.Tensor, k: int, trust: torch.Tensor) -> torch.Tensor:
    outputs, inputs = dense.shape
    sums = torch.zeros(-(-outputs // k), -(-inputs // k), k, dtype=torch.float64)
    weights = torch.zeros_like(sums)
    for r in range(outputs):
        for c in range(inputs):
            sums[r // k, c // k, (r % k - c % k) % k] += (trust * dense)[r, c]
            weights[r // k, c // k, (r % k - c % k) % k] += trust[r, c]
    return torch.where(weights > 0, sums / weights, 0.0)


@pytest.mark.parametrize(("k", "outputs", "inputs"), SIZES)
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_of_every_wrapped_diagonal(k: int, outputs: int, inputs: int, weighted: bool) -> None:
    dense = torch.randn(outputs, inputs, dtype=torch.float64)
    trust = torch.rand(outputs, inputs, dtype=torch.float64) if weighted else torch.ones_like(dense)
    projection = project(dense, k, importance=trust if weighted else None)
    torch.testing.assert_close(projection.weight, mean_of_diagonals(dense, k, trust), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("k", "outputs", "inputs"), SIZES)
def test_kept_energy_is_that_of_the_dense_matrix(k: int, outputs: int, inputs: int) -> None:
    dense = torch.randn(outputs, inputs, dtype=torch.float64)
    projection = project(dense, k)
    near = dense_matrix(projection.weight, outputs, inputs)
    assert projection.kept_energy == pytest.approx(float(near.square().sum() / dense.square().sum()))
    # The rest is orthogonal to every circulant matrix, so nothing else is nearer.
    other = dense_matrix(torch.randn_like(projection.weight), outputs, inputs)
    assert float(((dense - near) * other).sum()) == pytest.approx(0, abs=1e-10)


def test_an_unstructured_matrix_keeps_one_part_in_k() -> None:
    dense = torch.randn(256, 256)
    assert project(dense, 16).kept_energy == pytest.approx(1 / 16, rel=0.1)
    rescaled = dense_matrix(project(dense, 16, rescale=True).weight, 256, 256)
    assert float(rescaled.square().sum()) == pytest.approx(float(dense.square().sum()), rel=1e-5)


def test_taps_and_groups_are_projected_apart() -> None:
    dense = torch.randn(6, 4, 3, 2, dtype=torch.float64)
    projection = project(dense, 2, groups=2)
    assert projection.weight.shape == (4, 3, 2, 2, 2)
    expected = project(dense[3:, :, 1, 1], 2).weight
    torch.testing.assert_close(projection.weight[2:, 1, 1], expected)


def test_coverage_counts_ragged_edges() -> None:
    counts = coverage(torch.zeros(3, 3), 2)
    assert counts.sum() == 9
    assert counts[1, 1].tolist() == [1, 0]  # a corner of one element


def test_zero_weights_and_zero_importance() -> None:
    assert project(torch.zeros(4, 4), 2, rescale=True).kept_energy == 1.0
    dense = torch.randn(4, 4)
    plain = project(dense, 2)
    assert torch.equal(project(dense, 2, importance=torch.zeros(4, 4)).weight, plain.weight)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_weights_are_refused(bad: float) -> None:
    dense = torch.ones(4, 4)
    dense[1, 2] = bad
    with pytest.raises(UsageError, match="expected finite values, got 1"):
        project(dense, 2)


def test_refuses_negative_importance() -> None:
    with pytest.raises(UsageError, match="importance"):
        project(torch.ones(4, 4), 2, importance=-torch.ones(4, 4))
