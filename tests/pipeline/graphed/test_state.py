"""What a replay may differ by from eager mode."""

import pytest
import torch
from torch import nn

from lamina.errors import CheckError
from lamina.pipeline.graphed.state import judge, rounding
from lamina.run import precision_mode

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


def test_a_replay_may_differ_by_the_rounding_of_products() -> None:
    linear, conv, lstm = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(2, 2, 1)), nn.LSTM(2, 2)
    for precision, rounded in (("fp32", 2**-24), ("tf32", 2**-11)):
        with precision_mode(precision, autotune=False):
            assert {rounding(model, None) for model in (linear, conv, lstm)} == {rounded}
            assert rounding(linear, torch.bfloat16) == 2**-8
    assert rounding(nn.Linear(2, 2).half(), None) == rounding(linear, torch.float16) == 2**-11
    assert rounding(nn.ReLU(), None) == 0
    judge([X * (1 + 2**-12)], [X], [X], "outputs", 2**-11)
    with pytest.raises(CheckError):
        judge([X * (1 + 2**-10)], [X], [X], "outputs", 2**-11)
