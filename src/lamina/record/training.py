"""Progress of a training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """Means over one epoch of training, and the test set after it. ``seconds`` is training time alone.

    Where predictions are neither right nor wrong, accuracies are NaN, or 0 once they are stored.
    """

    epoch: int
    step: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    seconds: float
