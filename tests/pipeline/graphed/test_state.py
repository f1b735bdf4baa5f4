"""What a replay may differ by from eager mode."""

import pytest
import torch

from lamina.errors import CheckError
from lamina.pipeline.graphed.state import judge

X = torch.ones(8)


def test_a_replay_may_differ_by_a_sum_in_another_order() -> None:
    judge([X * (1 + 0.9e-5)], [X], [X], "outputs")
    for other in (X * (1 + 1.2e-5), X * torch.nan):
        with pytest.raises(CheckError, match="outputs by a CUDA graph differ"):
            judge([other], [X], [X], "outputs")


def test_a_replay_may_differ_by_more_where_eager_runs_do() -> None:
    judge([X * 1.03], [X], [X * 1.01], "outputs")
    with pytest.raises(CheckError):
        judge([X * 1.05], [X], [X * 1.01], "outputs")
