"""A time-delay acoustic model: dilated convolutions over frames (Peddinti et al. 2015, table 1).

A context of offsets {a, b} is a kernel of 2 with dilation b - a. Convolving without padding shifts the frames
by a constant, so the offsets' signs disappear and the layer is the published one.
"""

from __future__ import annotations

from torch import Tensor, nn

_CONTEXTS = ((5, 1), (2, 3), (2, 6), (2, 9), (1, 1))
"""Kernel and dilation of [-2, 2], {-1, 2}, {-3, 3}, {-7, 2} and {0}: 23 frames in all."""


class TDNN(nn.Module):
    """``x: (N, T >= 23, features)`` to ``(N, classes)``, or ``(N, T - 22, classes)`` if not ``pooled``.

    ``pooled`` averages the logits over frames: one label for each recording instead of one for each frame.
    """

    def __init__(self, num_classes: int = 10, width: int = 512, features: int = 40, pooled: bool = True) -> None:
        super().__init__()
        self.pooled = pooled
        layers: list[nn.Module] = []
        channels = features
        for kernel, dilation in _CONTEXTS:
            layers += [
                nn.Conv1d(channels, width, kernel, dilation=dilation),
                nn.ReLU(inplace=True),
                nn.BatchNorm1d(width),
            ]
            channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Conv1d(width, num_classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x.transpose(1, 2)))
        return logits.mean(dim=2) if self.pooled else logits.transpose(1, 2)


def tdnn(num_classes: int = 10, width: int = 512, pooled: bool = True) -> nn.Module:
    """TDNN over 40 log-mel features, hidden layers of ``width`` units."""
    return TDNN(num_classes, width, pooled=pooled)
