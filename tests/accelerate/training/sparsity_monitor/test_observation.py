"""What is read from the counts of a pass."""

import pytest
import torch
from torch import Tensor

from lamina.accelerate.training.sparsity_monitor import Observation
from lamina.accelerate.training.sparsity_monitor.reference import as_matrices, count
from lamina.record import Sparsity


def observe(x: Tensor) -> Observation:
    images, rows, pixels = (matrices := as_matrices(x)).shape
    return Observation.from_words("conv1", 7, rows, images * pixels, count(matrices).tolist())


def test_shares_and_numbers() -> None:
    x = torch.zeros(1, 4, 4, 8)
    x[0, 0, 0, 0] = x[0, 0, 2, 1] = x[0, 1, 0, 0] = 1
    found = observe(x)
    assert found.density == 3 / 128
    assert found.sparsity == 125 / 128
    assert (found.dead_channels, found.longest_column) == (2, 2)
    assert found.union_density == {2: 3 / 64, 16: 3 / 8, 32: 2 / 4, 64: 2 / 4, 128: 2 / 4}


def test_independent_zeros_do_not_cluster_and_runs_do() -> None:
    iid = observe((torch.rand(2, 16, 64, 64) < 0.3).float())
    assert iid.clustering == pytest.approx(0, abs=0.02)
    assert iid.union_density[16] == pytest.approx(1 - 0.7**16, abs=0.01)
    runs = observe((torch.rand(2, 16, 64, 4, 1) < 0.3).float().expand(2, 16, 64, 4, 16))
    assert runs.clustering == pytest.approx(1)
    assert runs.union_density[16] == pytest.approx(runs.density)
    # Half the pairs repeat their first element: a correlation of a half.
    first, other = torch.rand(2, 4, 8, 64, 64, 1).lt(0.4).unbind()
    second = torch.where(torch.rand(first.shape) < 0.5, first, other)
    half = observe(torch.cat([first, second], -1).float())
    assert half.clustering == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_where_all_is_the_same_there_is_no_clustering(value: float) -> None:
    assert observe(torch.full((1, 3, 5, 5), value)).clustering == 0


def test_the_store_gets_a_plain_record() -> None:
    found = observe(torch.ones(1, 3, 1, 20))
    assert found.record() == Sparsity("conv1", "output", 7, 1.0, dict.fromkeys((2, 16, 32, 64, 128), 1.0), 0, 3)
