"""LeNet-5 (LeCun et al. 1998, fig. 2), modernized: ReLU instead of tanh, max pooling instead of trained subsampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LeNet5(nn.Module):
    """Widths 6-16-120-84. ``x: (N, 1, 28, 28)``; the first convolution pads to the published 32x32."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2),
            nn.Conv2d(6, 16, kernel_size=5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(inplace=True),
            nn.Linear(120, 84),
            nn.ReLU(inplace=True),
            nn.Linear(84, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def lenet5(num_classes: int = 10) -> nn.Module:
    """LeNet-5 for 28x28 grayscale images."""
    return LeNet5(num_classes)
