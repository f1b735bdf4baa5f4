"""What a selection compares of on-chip fission, and its predicted times."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import nn

from lamina.accelerate.papers.on_chip_fission import candidates as cell
from lamina.accelerate.papers.on_chip_fission.config import OnChipFission
from lamina.accelerate.papers.on_chip_fission.convert import replace
from lamina.accelerate.select import DENSE, observe
from lamina.accelerate.select.cost import CostModel
from lamina.errors import UnsupportedError
from lamina.record import Roofs

PEAKS = Roofs("x", "2026-01-01", 1, {"torch": "2"}, 1000.0, 1000.0, {"fp32": 1e4}, 4.0, 5.0)


@pytest.fixture
def as_on_a_gpu() -> Iterator[None]:
    with patch.object(cell, "resolve_impl", lambda impl, x: "kernel"):
        yield


def test_kernels_are_predicted_by_the_cost_model(as_on_a_gpu: None) -> None:
    times = []
    for dense, x in ((nn.Linear(512, 256), torch.randn(64, 512)), (nn.Conv2d(64, 64, 3), torch.randn(8, 64, 16, 16))):
        call = observe(nn.Sequential(dense), ["0"], x)["0"]
        for keep in (1.0, 0.25):
            layer = replace(dense, OnChipFission("half", keep=keep))
            found = cell.predictions(dense, layer, call, CostModel(PEAKS, "graph", training=False))
            assert [*found] == [DENSE, "impl=kernel"]
            times.append(found["impl=kernel"].time_us)
            made = found["impl=kernel"].make()
            assert made.impl == "kernel"
    assert times[1] < times[0] and times[3] < times[2]


def test_there_is_no_prediction_for_training_or_the_reference() -> None:
    dense, x = nn.Linear(8, 8), torch.randn(2, 8)
    call = observe(nn.Sequential(dense), ["0"], x)["0"]
    layer = replace(dense, OnChipFission())
    with pytest.raises(UnsupportedError, match="no cost model for training"):
        cell.predictions(dense, layer, call, CostModel(PEAKS, "graph", training=True))
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="impl=reference, which runs on cpu"):
            cell.predictions(dense, layer, call, CostModel(PEAKS, "graph", training=False))
