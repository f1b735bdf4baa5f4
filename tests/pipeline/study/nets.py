"""Networks of a function, as users bring them."""

import warnings

import torch
from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])  # type: ignore[no-any-return]


def rows() -> nn.Module:
    return Rows()


class Uncopyable(nn.Linear):
    """Holds a generator."""

    def __init__(self) -> None:
        super().__init__(784, 10)
        self.items = (item for item in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # deprecated, but users have it
        inner = torch.jit.script(nn.Sequential(nn.Linear(784, 32)))
    return nn.Sequential(nn.Flatten(), inner, nn.Linear(32, 10))


class Normalized(nn.Module):
    """Convolutions with batch normalization, a residual and a ReLU that all of them share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool, self.head = nn.ReLU(), nn.MaxPool2d(2), nn.Linear(8 * 7 * 7, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.relu(x + self.bn2(self.conv2(x)))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def normalized() -> nn.Module:
    return Normalized()


def chain() -> nn.Module:
    """Every layer is the only one that reads the layer before it."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
