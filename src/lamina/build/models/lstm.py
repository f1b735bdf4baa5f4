"""A long short-term memory as an acoustic model (Hochreiter and Schmidhuber 1997; Graves et al. 2013)."""

from __future__ import annotations

from torch import Tensor, nn


class LSTMAcoustic(nn.Module):
    """``x: (N, T, features)`` to ``(N, classes)``, or ``(N, T, classes)`` if not ``pooled``.

    ``pooled`` averages the logits over frames: one label for each recording instead of one for each frame.
    """

    def __init__(
        self,
        num_classes: int = 10,
        width: int = 512,
        layers: int = 2,
        features: int = 40,
        pooled: bool = True,
    ) -> None:
        super().__init__()
        self.pooled = pooled
        self.lstm = nn.LSTM(features, width, num_layers=layers, batch_first=True)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        logits: Tensor = self.classifier(states)
        return logits.mean(dim=1) if self.pooled else logits


def lstm(num_classes: int = 10, width: int = 512, layers: int = 2, pooled: bool = True) -> nn.Module:
    """LSTM over 40 log-mel features, ``layers`` levels of ``width`` cells."""
    return LSTMAcoustic(num_classes, width, layers, pooled=pooled)
