"""ResNet (He et al. 2016, table 1), module for module as in torchvision.

Bottlenecks stride in the 3x3 convolution ("v1.5"), not in the first 1x1 as published.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


class Bottleneck(nn.Module):
    """1x1 to ``width``, 3x3, 1x1 to four times ``width``, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    """``x: (N, 3, H, W)``.

    ``small_images`` starts with a 3x3 of stride 1 and no pooling, as He et al. did for CIFAR-10.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        num_classes: int = 1000,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        if small_images:
            self.conv1 = _conv3x3(3, 64)
        else:
            self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], 1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], 2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], 2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    outputs = width * block.expansion
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(_conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
    rest = (block(outputs, width, 1, None) for _ in range(depth - 1))
    return nn.Sequential(block(inputs, width, stride, downsample), *rest)


def resnet10(num_classes: int = 1000) -> nn.Module:
    """One basic block a stage: 5,418,792 parameters. Not in torchvision; a benchmark of Spartan."""
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes)


def resnet18(num_classes: int = 1000) -> nn.Module:
    """ResNet-18 as in torchvision: 11,689,512 parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 1000) -> nn.Module:
    """ResNet-34 as in torchvision: 21,797,672 parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(num_classes: int = 1000) -> nn.Module:
    """ResNet-50 as in torchvision: 25,557,032 parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


def resnet101(num_classes: int = 1000) -> nn.Module:
    """ResNet-101 as in torchvision: 44,549,160 parameters."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes)


def resnet152(num_classes: int = 1000) -> nn.Module:
    """ResNet-152 as in torchvision: 60,192,808 parameters."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes)


def resnet10_cifar(num_classes: int = 10) -> nn.Module:
    """ResNet-10 for 32x32 images, with stages at 32, 16, 8 and 4 pixels."""
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes, small_images=True)


def resnet18_cifar(num_classes: int = 10) -> nn.Module:
    """ResNet-18 for 32x32 images, with stages at 32, 16, 8 and 4 pixels."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, small_images=True)
