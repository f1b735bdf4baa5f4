"""The two networks called CifarNet: Caffe's ``cifar10_full`` and TensorFlow's CIFAR-10 tutorial.

In both, pooling windows may hang over the far edge (``ceil_mode``): Caffe rounds up, TensorFlow pads "SAME".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CifarNet(nn.Module):
    """Three 5x5 convolutions (32, 32, 64 channels), each pooled, and one linear layer. ``x: (N, 3, 32, 32)``.

    Caffe normalises within a channel; torch has no such layer, so the same constants run across channels.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, kernel_size=5, padding=2),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(3, alpha=5e-5, beta=0.75, k=1.0),
            nn.Conv2d(32, 32, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(kernel_size=3, stride=2, ceil_mode=True),
            nn.LocalResponseNorm(3, alpha=5e-5, beta=0.75, k=1.0),
            nn.Conv2d(32, 64, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(kernel_size=3, stride=2, ceil_mode=True),
        )
        self.classifier = nn.Linear(64 * 4 * 4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


class CifarNet64(nn.Module):
    """Two 5x5 convolutions of 64 channels and three linear layers. ``x: (N, 3, 32, 32)``.

    Its second convolution, 5x5x64x64, is the layer in which Spartan observes sparsity. The tutorial crops
    images to 24x24; here they stay whole, so the first linear layer reads 8x8 instead of 6x6 positions.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        # TensorFlow's alpha multiplies the sum over 9 channels, torch's the mean: 9 * 0.001/9.
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75, k=1.0),
            nn.Conv2d(64, 64, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75, k=1.0),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(
            nn.Linear(64 * 8 * 8, 384),
            nn.ReLU(inplace=True),
            nn.Linear(384, 192),
            nn.ReLU(inplace=True),
            nn.Linear(192, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def cifarnet(num_classes: int = 10) -> nn.Module:
    """CifarNet as in Caffe's ``cifar10_full`` (DeftNN's benchmark C10)."""
    return CifarNet(num_classes)


def cifarnet64(num_classes: int = 10) -> nn.Module:
    """CifarNet as in TensorFlow's tutorial (Spartan's motivation)."""
    return CifarNet64(num_classes)
