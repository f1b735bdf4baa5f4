"""A traced network that is run call by call, and one to try it on."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lamina.build.calls import Trace


def replay(found: Trace, *inputs: Tensor) -> list[Tensor]:
    values = dict(zip(found.inputs, inputs, strict=True))
    for call in found.calls:
        results = call.run([values[n] for n in call.inputs])
        values.update(zip(call.outputs, results, strict=True))
    return [values[n] for n in found.outputs]


class Residual(nn.Module):
    """Functions between modules: an in-place add, a concatenation, a chunk, a parameter used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.convolution(x))
        y += x
        y = y * self.scale
        y = torch.cat([y, F.gelu(y)], 1)
        first, second = y.chunk(2, 1)
        pooled = torch.flatten(F.adaptive_avg_pool2d(torch.cat([first, second], 1), 1), 1)
        return self.head(self.relu(pooled))
