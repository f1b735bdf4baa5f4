"""VGG of 11 to 19 layers (Simonyan and Zisserman 2015, table 1), module for module as in torchvision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions before each of the five poolings."""

_WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """``x: (N, 3, H, W)``, averaged to ``grid x grid`` before three linear layers of width ``hidden``."""

    def __init__(
        self, depth: int, num_classes: int = 1000, grid: int = 7, hidden: int = 4096, dropout: float = 0.5
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, width in zip(_BLOCKS[depth], _WIDTHS, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((grid, grid))
        self.classifier = nn.Sequential(
            nn.Linear(512 * grid * grid, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(p=dropout),
            nn.Linear(hidden, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


def vgg11(num_classes: int = 1000) -> nn.Module:
    """VGG-11 as in torchvision: 132,863,336 parameters."""
    return VGG(11, num_classes)


def vgg13(num_classes: int = 1000) -> nn.Module:
    """VGG-13 as in torchvision: 133,047,848 parameters."""
    return VGG(13, num_classes)


def vgg16(num_classes: int = 1000) -> nn.Module:
    """VGG-16 as in torchvision: 138,357,544 parameters."""
    return VGG(16, num_classes)


def vgg19(num_classes: int = 1000) -> nn.Module:
    """VGG-19 as in torchvision: 143,667,240 parameters."""
    return VGG(19, num_classes)


def vgg11_cifar(num_classes: int = 10) -> nn.Module:
    """VGG-11 for 32x32 images: five poolings leave 1x1, so the linear layers have width 512."""
    return VGG(11, num_classes, grid=1, hidden=512)


def vgg16_cifar(num_classes: int = 10) -> nn.Module:
    """VGG-16 for 32x32 images, with linear layers of width 512."""
    return VGG(16, num_classes, grid=1, hidden=512)
