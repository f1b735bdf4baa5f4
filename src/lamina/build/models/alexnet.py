"""AlexNet: torchvision's one-tower revision (Krizhevsky 2014), and the network of 2012 with LRN."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AlexNet(nn.Module):
    """The revision of 2014, module for module as in torchvision. ``x: (N, 3, 224, 224)``."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(p=dropout),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


class AlexNet2012(nn.Module):
    """The published network. ``x: (N, 3, 227, 227)``, a size that 11x11 windows of stride 4 cover exactly.

    ``groups=1`` gives every convolution all channels; ``groups=2`` splits the second, fourth and fifth as
    the two towers of the paper did.
    """

    def __init__(self, num_classes: int = 1000, groups: int = 1, dropout: float = 0.5) -> None:
        super().__init__()
        # The paper's alpha of 1e-4 multiplies the sum over 5 channels, torch's the mean.
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, kernel_size=11, stride=4),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(96, 256, kernel_size=5, padding=2, groups=groups),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(256, 384, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 384, kernel_size=3, padding=1, groups=groups),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, kernel_size=3, padding=1, groups=groups),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


def alexnet(num_classes: int = 1000) -> nn.Module:
    """AlexNet as in torchvision: 61,100,840 parameters."""
    return AlexNet(num_classes)


def alexnet2012(num_classes: int = 1000, groups: int = 1) -> nn.Module:
    """AlexNet of 2012: 62,367,776 weights without groups, 60,954,656 with ``groups=2``."""
    return AlexNet2012(num_classes, groups)
