"""The CIFAR-10 network of the block-circulant work: four convolutions, three linear layers, a softmax.

The dissertation (7.5.3, fig. 7.12) states only these counts. The widths are lamina's: multiples of 64, which
blocks of 16, 32 and 64 divide. Only the first layer's three channels and the last one's classes do not fit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv4FC3(nn.Module):
    """3x3 convolutions of 64, 64, 128, 128 channels, linear layers of 512, 512. ``x: (N, 3, 32, 32)``."""

    def __init__(self, num_classes: int = 10, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(128, 128, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(128 * 8 * 8, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(512, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def conv4fc3(num_classes: int = 10) -> nn.Module:
    """Four convolutions and three linear layers for 32x32 images; the softmax is in the loss."""
    return Conv4FC3(num_classes)
