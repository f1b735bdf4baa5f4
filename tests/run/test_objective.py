"""Class scores are found in outputs of any form; what has none is refused, or trained by another objective."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.errors import UsageError
from lamina.run import class_scores, classification, mean_square

SCORES, LABELS = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 9, 3])
Pair = namedtuple("Pair", ["hidden", "logits"])


@dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


@pytest.mark.parametrize(
    "outputs",
    [
        SCORES,
        {"size": torch.ones(4, 2), "label": SCORES},
        Pair(torch.ones(4, 6, 16), SCORES),
        Output(None, SCORES),
        OrderedDict(logits=SCORES, cache=[object()]),
        [torch.zeros(()), (torch.ones(4, 10, dtype=torch.int64), SCORES)],
    ],
)
def test_scores_are_found(outputs: Any) -> None:
    assert class_scores(outputs, LABELS, 10) is SCORES
    loss, hits = classification(10)(outputs, LABELS, 0.1)
    torch.testing.assert_close(loss, F.cross_entropy(SCORES, LABELS, label_smoothing=0.1))
    assert int(hits) == int((SCORES.argmax(1) == LABELS).sum())


def test_in_training_scores_depend_on_parameters() -> None:
    mask, scores = torch.ones(4, 16), SCORES.clone().requires_grad_()
    assert class_scores((mask, scores), LABELS) is scores
    with torch.no_grad():
        assert class_scores((mask, SCORES), LABELS) is mask
    assert class_scores((mask, SCORES), LABELS) is mask, "nothing can be trained"


def test_scores_of_each_position_are_found() -> None:
    scores, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    loss, hits = classification(7)({"hidden": torch.randn(2, 5, 3), "scores": scores}, labels, 0.0)
    torch.testing.assert_close(loss, F.cross_entropy(scores.movedim(2, 1), labels))
    assert int(hits) == int((scores.argmax(-1) == labels).sum())


@pytest.mark.parametrize("outputs", [torch.randn(4, 9), torch.randn(4, 10, 8, 8), torch.ones(4), "text", None])
def test_outputs_without_scores_are_refused_by_their_shapes(outputs: Any) -> None:
    with pytest.raises(UsageError, match=r"expected class scores \(4, 10\) among the network's outputs, got "):
        classification(10)(outputs, LABELS, 0.0)


def test_other_outputs_may_have_another_objective() -> None:
    image, vector = torch.randn(4, 3, 8, 8, requires_grad=True), torch.randn(4, 2, dtype=torch.complex64)
    loss, hits = classification(10, mean_square)((image, vector), LABELS, 0.0)
    torch.testing.assert_close(loss, (image.square().mean() + vector.abs().square().mean()) / 2)
    assert int(hits) == 0 and loss.requires_grad
    with pytest.raises(UsageError, match="floating-point outputs to train on, got str"):
        mean_square("text", LABELS, 0.0)
