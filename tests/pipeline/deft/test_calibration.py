"""What a network has right of samples."""

from typing import Any

import pytest
import torch
from torch import nn

from lamina.errors import UsageError
from lamina.pipeline.deft.calibration import accuracy, hits, percent

CPU = torch.device("cpu")


def test_hits_are_those_of_each_sample_in_order() -> None:
    scores = torch.eye(3)[[0, 1, 2, 2, 0]]
    batches = [(scores[:3], torch.tensor([0, 1, 0])), (scores[3:], torch.tensor([2, 1]))]
    found = hits(nn.Identity(), batches, CPU)
    assert found.dtype == torch.float64 and found.tolist() == [1, 1, 0, 1, 0]
    assert accuracy(nn.Identity(), batches, CPU) == percent(found) == 60.0


def test_a_sample_with_several_labels_has_a_fraction() -> None:
    scores = torch.eye(3)[torch.tensor([[0, 1, 2, 2], [0, 0, 1, 1]])]
    labels = torch.tensor([[0, 1, 2, 0], [1, 0, 0, 0]])
    assert hits(nn.Identity(), [(scores, labels)], CPU).tolist() == [0.75, 0.25]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one sample, got none"),
        ([(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))], "at least one sample, got none"),
        ([(torch.zeros(2, 3, 5), torch.zeros(2, dtype=torch.int64))], r"expected class scores \(2, 'C'\)"),
    ],
)
def test_without_samples_or_scores_there_is_no_accuracy(batches: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        accuracy(nn.Identity(), batches, CPU)
