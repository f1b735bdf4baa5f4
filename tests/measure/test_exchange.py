"""The measured exchange of gradients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lamina.measure import GradientExchange
from lamina.measure.exchange import Exchanged, covered
from lamina.run.processes import data_parallel


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_overlapping_intervals_count_once() -> None:
    assert covered([]) == 0
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4


def test_without_processes_nothing_is_exchanged() -> None:
    network = nn.Linear(2, 2)
    assert data_parallel(network, GradientExchange(torch.device("cpu")).hook) is network


@pytest.mark.usefixtures("group")
def test_the_bytes_of_every_step_are_counted() -> None:
    network = nn.Linear(3, 2)
    exchange = GradientExchange(torch.device("cpu"))
    model = data_parallel(network, exchange.hook)
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
    taken = exchange.take()
    assert (taken.steps, taken.gradient_bytes) == (2, 2 * 4 * 8) and taken.seconds > 0
    assert "32 bytes" in str(taken)
    assert exchange.take() == Exchanged(0, 0, 0)
    assert network.weight.grad is not None
    assert torch.equal(network.weight.grad, torch.full((2, 3), 8.0))


@pytest.mark.usefixtures("group")
def test_sparse_gradients_are_exchanged_unmeasured() -> None:
    network = nn.EmbeddingBag(5, 3, sparse=True)
    exchange = GradientExchange(torch.device("cpu"))
    model = data_parallel(network, exchange.hook)
    assert isinstance(model, DistributedDataParallel)
    model(torch.tensor([[1, 2]])).sum().backward()
    assert network.weight.grad is not None and network.weight.grad.is_sparse
    assert exchange.take() == Exchanged(0, 0, 0)
